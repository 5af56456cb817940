"""What SOFT's and InLine's attention adds to a trained model: its accuracy without it, and numbers of each layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmsoft.layers import InLineAttention, SoftAttention
from mmsoft.models.backbone import Backbone
from mmsoft.ops import add_predicted_convolution
from mmsoft.visualization import diagnose


@contextmanager
def without_attention(model: nn.Module) -> Iterator[int]:
    """Layers keep their local term alone; how many they are. Softmax layers stay."""
    before: list[tuple[nn.Module, dict[str, Any]]] = []
    for layer in model.modules():
        change: dict[str, Any] = {}
        if isinstance(layer, SoftAttention):
            change = dict(_attend=nothing)
        elif isinstance(layer, InLineAttention) and layer.predictor is not None:
            change = dict(forward=partial(_local_only, layer))
        if change:
            before.append((layer, dict(layer.__dict__)))
            layer.__dict__.update(change)
    try:
        yield len(before)
    finally:
        for layer, attributes in before:
            layer.__dict__.clear()
            layer.__dict__.update(attributes)


def nothing(x: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
    return torch.zeros_like(v)


def _local_only(layer: InLineAttention, x: Tensor, grid: tuple[int, int]) -> Tensor:
    v, predictor = layer.kv(x)[..., x.shape[-1] :], layer.predictor
    assert predictor is not None
    return layer.proj(add_predicted_convolution(torch.zeros_like(v), v, predictor(x.mean(1)), grid))


def layers_of(model: nn.Module, images: Tensor, loss: Callable[[Tensor], Tensor]) -> list[dict[str, Any]]:
    """Rows of ``diagnose`` for the first of these images, gradients of the loss of all; none for others' models."""
    if not isinstance(model, Backbone):
        return []
    rows = diagnose(model, images[:1], lambda: loss(model(images)))
    return [{key: _short(value) for key, value in row.items()} for row in rows]


def _short(value: Any) -> Any:
    return float(f'{value:.3g}') if isinstance(value, float) else value
