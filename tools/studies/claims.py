"""Two claims of the InLine paper, looked at in trained models: injectivity (its Figures 1 and 2) and locality (3).

Linear attention gives the same weights to different queries, as to all multiples of one under ReLU; InLine does not.
And softmax attention has much of its weight near the query, which InLine's local term restores.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import Tensor, nn

from mmsoft.layers import InLineAttention, LinearAttention
from mmsoft.visualization.claims import (
    attention_weights,
    inline_weights,
    queries_and_keys,
    told_apart,
)

PICTURES = 60
NEAR = ('near', 'near_alone')


@torch.no_grad()
def measure_claims(model: nn.Module, start: nn.Module, cfg: Config) -> dict[str, dict[str, Any]]:
    """Of a classifier's attention layers before stage 4, over validation pictures of the demo.

    ``own`` is what the layers do; of linear attention ``inline`` is what InLine's formula would make of the same
    queries and keys. Of each, ``doubled``: the share of queries that are confused with their own double; ``scaled``:
    how far weights move, of what sets them apart from uniform ones, when queries are multiplied by its FACTORS;
    ``confusions``: by picture, the pairs of a head's queries whose weights are alike though they are not, of ``pairs``
    in all; ``near``: by layer, the share of absolute weight in the 3 x 3 neighbourhood, ``near_alone`` that without a
    predicted local term, and ``near_start`` that before training, in the model ``start``.
    """
    pictures = _pictures(cfg)
    linear = isinstance(_layers(model)[0], LinearAttention)
    found = {}
    for kind in ('own', 'inline') if linear else ('own',):
        seen = [_looked_at(model, picture[None], kind) for picture in pictures]  # pictures x layers
        before = [_near_by_layer(start, picture[None], kind) for picture in pictures]
        found[kind] = dict(
            scaled=np.mean([[look['scaled'] for look in looks] for looks in seen], (0, 1)).tolist(),
            doubled=float(np.mean([[look['doubled'] for look in looks] for looks in seen])),
            confusions=[sum(look['confusions'] for look in looks) for looks in seen],
            pairs=sum(look['pairs'] for look in seen[0]),
            **{key: np.mean([[look[key] for look in looks] for looks in seen], 0).tolist() for key in NEAR},
            near_start=np.mean(before, 0).tolist(),
        )
    return found


def merge_claims(found: Sequence[dict[str, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """What measure_claims gave for several trainings of one attention: confusions of all, means of the rest."""
    merged = {}
    for kind in found[0]:
        parts = [claims[kind] for claims in found]
        merged[kind] = {key: np.mean([part[key] for part in parts], 0).tolist() for key in parts[0]}
        confusions = [count for part in parts for count in part['confusions']]
        merged[kind].update(confusions=confusions, pairs=parts[0]['pairs'])
    return merged


def _layers(model: nn.Module) -> list[nn.Module]:
    return [block.attn for stage in model.backbone.stages[:3] for block in stage.blocks]


def _weigher(layer: nn.Module, kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    return inline_weights if kind == 'inline' else partial(attention_weights, layer)


def _looked_at(model: nn.Module, image: Tensor, kind: str) -> list[dict[str, Any]]:
    """What is to be known of each layer for one image."""
    looks = []
    for layer, x, grid in _inputs_of(model, image):
        q, k = queries_and_keys(layer, x)
        weigh = _weigher(layer, kind)
        weights = weigh(q, k)  # (1, h, N, N)
        near = dict(near=near_share(weights, local_kernels(layer, x), grid), near_alone=near_share(weights, None, grid))
        looks.append(told_apart(q, lambda q, weigh=weigh, k=k: weigh(q, k)) | near)
    return looks


def _near_by_layer(model: nn.Module, image: Tensor, kind: str) -> list[float]:
    return [
        near_share(_weigher(layer, kind)(*queries_and_keys(layer, x)), local_kernels(layer, x), grid)
        for layer, x, grid in _inputs_of(model, image)
    ]


def local_kernels(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The predicted kernels (B, C, 3, 3) of an InLine layer with a local term."""
    if not isinstance(layer, InLineAttention) or layer.predictor is None:
        return None
    return layer.predictor(x.mean(1))


def near_share(weights: Tensor, kernels: Tensor | None, grid: tuple[int, int]) -> float:
    """Share of absolute weight (1, h, N, N) in the 3 x 3 neighbourhood, with kernels (1, C, 3, 3) added if given.

    A kernel weighs the values of its own channel; the share is a mean over channels, heads and queries.
    """
    heads, count = weights.shape[1:3]
    places = torch.arange(count).view(1, 1, *grid).float() + 1
    near = F.unfold(places, 3, padding=1)[0].long() - 1  # (9, N): the tokens around each, -1 outside
    inside = (near >= 0).float()
    around = weights[0].gather(-1, near.clamp(min=0).t().expand(heads, -1, -1)) * inside.t()  # (h, N, 9)
    far = weights[0].abs().sum(-1) - around.abs().sum(-1)  # (h, N)
    if kernels is None:
        total = around.abs().sum(-1)
        return (total / (total + far)).mean().item()
    kernels = kernels[0].flatten(1).unflatten(0, (heads, -1))  # (h, d, 9)
    total = ((around.unsqueeze(1) + kernels.unsqueeze(2)) * inside.t()).abs().sum(-1)  # (h, d, N)
    return (total / (total + far.unsqueeze(1))).mean().item()


def _inputs_of(model: nn.Module, images: Tensor) -> list[tuple[nn.Module, Tensor, tuple[int, int]]]:
    """Attention layers before stage 4, and what they are called with."""
    layers, seen = _layers(model), {}
    hooks = [layer.register_forward_pre_hook(lambda layer, inputs: seen.update({layer: inputs})) for layer in layers]
    model(images)
    for hook in hooks:
        hook.remove()
    return [(layer, *seen[layer]) for layer in layers]


def _pictures(cfg: Config) -> Tensor:
    """Evenly chosen from the test set (n, 3, H, W)."""
    dataset = DATASETS.build(cfg.test_dataloader.dataset)
    chosen = np.linspace(0, len(dataset) - 1, PICTURES).round().astype(int).tolist()
    return torch.stack([dataset[index]['inputs'] for index in chosen])
