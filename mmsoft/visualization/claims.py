"""Whether an attention tells queries apart, and whether it looks near them: Figures 1 to 3 of InLine's paper.

Linear attention gives the same weights to different queries, as to all multiples of one under ReLU; InLine does not.
Softmax attention has much of its weight near the query, which InLine's local term restores.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmsoft.layers import InLineAttention, LinearAttention, SoftmaxAttention
from mmsoft.layers.inline_attention import feature_map
from mmsoft.ops import inline_attention, linear_attention

from .attention import attention_rows
from .looking import Look, backbone_of, heads_of, look

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
# Two queries are confused if their weights differ by less than the one, of what sets them apart from uniform weights,
# and they themselves by more than the other.
ALIKE, APART = 0.01, 0.1
SEPARATE = (SoftmaxAttention, LinearAttention, InLineAttention)  # whose weights are known from queries and keys
QUERIES, NEAR_QUERIES, CHANNELS = 256, 32, 4  # of a layer and picture, evenly chosen
MOST_TOKENS = 10_000  # of whose weights there is a unit matrix


@torch.no_grad()
def injectivity(
    model: nn.Module, images: Iterable[Tensor], stages: Sequence[int] | None = None, as_inline: bool = False
) -> dict[str, Any]:
    """How queries of a model are told apart, over images (1, 3, H, W), by 256 of each layer.

    By layer, means over images: ``scaled``, how far weights move, of what sets them apart from uniform ones, when a
    query is multiplied by each of ``factors``; ``doubled``, the share of queries whose double has the same weights. By
    image: ``confusions``, pairs of a head's queries whose weights are alike though they are not, of ``pairs``.
    ``as_inline``: what InLine's formula makes of the same queries and keys.
    """
    seen, names = [], []
    for image in images:
        looks = _separate(model, image, stages)
        names = [each.name for each in looks]
        seen.append([_seen_apart(each, as_inline) for each in looks])  # images x layers
    if not seen:
        raise ValueError('there are no pictures to look at')
    means = {
        key: np.mean([[part[key] for part in parts] for parts in seen], 0).tolist() for key in ('scaled', 'doubled')
    }
    return dict(
        layers=names,
        factors=list(FACTORS),
        **means,
        confusions=[sum(part['confusions'] for part in parts) for parts in seen],
        pairs=sum(part['pairs'] for part in seen[0]),
    )


def _separate(model: nn.Module, image: Tensor, stages: Sequence[int] | None) -> list[Look]:
    known = [each for each in look(model, image, stages) if isinstance(each.layer, SEPARATE) and _is_whole(each)]
    if not known:
        raise ValueError(
            f'{type(backbone_of(model)).__name__} has no layer of InLine, linear or softmax attention over all tokens, '
            'whose weights are known from queries and keys'
        )
    for each in known:
        if each.x.shape[1] > MOST_TOKENS:
            raise ValueError(
                f'injectivity compares whole rows of weights: {each.name} has {each.x.shape[1]} tokens, of at most '
                f'{MOST_TOKENS}; take smaller pictures, or later stages'
            )
    return known


def _is_whole(seen: Look) -> bool:
    """Whether every token is a key of its own, with a projection that is not the queries'."""
    layer, most = seen.layer, getattr(seen.layer, 'max_keys', None)
    averaged = most is not None and seen.grid[0] * seen.grid[1] > most
    return not averaged and not getattr(layer, 'reduces', False) and not getattr(layer, 'symmetric', False)


def _seen_apart(seen: Look, as_inline: bool) -> dict[str, Any]:
    q, k = queries_and_keys(seen.layer, seen.x)
    weigh = partial(inline_weights, k=k) if as_inline else partial(attention_weights, seen.layer, k=k)
    return told_apart(q[:, :, _spread(q.shape[2], QUERIES)], weigh)


def told_apart(q: Tensor, weigh: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """What :func:`injectivity` tells, of queries q (1, h, Q, d) whose weights (1, h, Q, N) are ``weigh(q)``."""
    weights, others = weigh(q), {factor: weigh(factor * q) for factor in FACTORS}
    count = q.shape[2]
    return dict(
        scaled=[difference(weights, others[factor]).mean().item() for factor in FACTORS],
        doubled=are_alike(weights, others[2.0]).float().mean().item(),
        confusions=count_confusions(weights, q),
        pairs=q.shape[1] * count * (count - 1) // 2,
    )


def _spread(count: int, most: int) -> list[int]:
    """At most so many numbers below ``count``, evenly chosen."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int)).tolist()


def locality(model: nn.Module, images: Iterable[Tensor], stages: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """By layer of any attention: the share of absolute weight in a query's 3 x 3 neighbourhood (InLine's Figure 3).

    ``near`` is with the local term, ``alone`` without it, ``uniform`` what equal weights would have; means over images
    (1, 3, H, W), heads, 32 queries of each layer and, of the local term, four channels.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for image in images:
        for each in look(model, image, stages):
            found.setdefault(each.name, []).append(_near(each))
    if not found:
        raise ValueError('there are no pictures to look at')
    return [
        dict(layer=name, **{key: float(np.mean([part[key] for part in parts])) for key in parts[0]})
        for name, parts in found.items()
    ]


def _near(seen: Look) -> dict[str, float]:
    height, width = seen.grid
    picked = _spread(height * width, NEAR_QUERIES)
    inside = torch.stack([_around(token // width, token % width, seen.grid) for token in picked])  # (Q, H * W)

    def share(local: bool, channel: int) -> float:
        queries = [seen.leading + token for token in picked]
        rows = attention_rows(seen.layer, seen.x, seen.grid, queries, *seen.more, local=local, channel=channel)
        weights = rows[:, :, seen.leading :].abs().cpu()
        return ((weights * inside[:, None]).sum(-1) / weights.sum(-1).clamp(min=1e-30)).mean().item()

    channels = _spread(seen.layer.proj.in_features // heads_of(seen.layer), CHANNELS)
    return dict(
        stage=seen.stage,
        near=float(np.mean([share(True, channel) for channel in channels])),
        alone=share(False, 0),
        uniform=inside.mean().item(),
    )


def _around(row: int, column: int, grid: tuple[int, int]) -> Tensor:
    """(H * W,): 1 in the 3 x 3 neighbourhood of a token, 0 elsewhere."""
    inside = torch.zeros(grid)
    inside[max(row - 1, 0) : row + 2, max(column - 1, 0) : column + 2] = 1
    return inside.flatten()


def project(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x (B, N, C) -> queries, keys and values (B, h, N, d), by the layer's linear maps."""
    k, v = layer.kv(x).chunk(2, -1)
    q, k, v = (part.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for part in (layer.q(x), k, v))
    return q, k, v


def queries_and_keys(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """(B, h, N, d) each, after the features or the kernel function of a layer that has one."""
    q, k, _ = project(layer, x)
    if isinstance(layer, LinearAttention):
        return layer.features(q, k)
    if isinstance(layer, InLineAttention):
        return feature_map(q, layer.kernel), feature_map(k, layer.kernel)
    return q, k


def attention_weights(layer: nn.Module, q: Tensor, k: Tensor) -> Tensor:
    """The N x N matrix (B, h, N, N) that a layer applies to its values: what it makes of the unit matrix."""
    if isinstance(layer, LinearAttention):
        return linear_attention(q, k, _unit(k))
    if isinstance(layer, InLineAttention):
        return inline_weights(q, k)
    if isinstance(layer, SoftmaxAttention) and not layer.reduces:
        return (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    raise TypeError(f'the weights of {type(layer).__name__} are not known')


def inline_weights(q: Tensor, k: Tensor) -> Tensor:
    """The matrix (B, h, N, N) of InLine attention."""
    return inline_attention(q, k, _unit(k))


def _unit(k: Tensor) -> Tensor:
    return torch.eye(k.shape[2], device=k.device).expand(*k.shape[:2], -1, -1)


def deviation(weights: Tensor) -> Tensor:
    """How far weights (..., N) that sum to 1 are from uniform ones, in L1."""
    return (weights - 1 / weights.shape[-1]).abs().sum(-1)


def difference(weights: Tensor, others: Tensor) -> Tensor:
    """Of rows (..., N) of two matrices, relative to the larger deviation."""
    larger = torch.maximum(deviation(weights), deviation(others))
    return (weights - others).abs().sum(-1) / larger.clamp(min=torch.finfo(larger.dtype).tiny)


def are_alike(weights: Tensor, others: Tensor) -> Tensor:
    """Which rows (..., N) of two matrices differ by little of their deviation."""
    return difference(weights, others) < ALIKE


def count_confusions(weights: Tensor, q: Tensor) -> int:
    """Pairs of queries q (1, h, N, d) with ``weights`` (1, h, N, N) that are alike though the queries are not."""
    count = 0
    for rows, queries in zip(weights[0], q[0], strict=True):
        size, length = deviation(rows), queries.norm(dim=-1)
        alike = torch.cdist(rows, rows, p=1) < ALIKE * torch.maximum(size[:, None], size)
        apart = torch.cdist(queries, queries) > APART * torch.maximum(length[:, None], length)
        count += int((alike & apart).triu(1).sum())
    return count
