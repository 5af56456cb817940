"""What a model's attention layers are, and what they are called with for an image."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mmsoft.ops.checks import check

# Projections whose output ends in the values, but for what gates the heads' outputs (RALA's last part).
VALUES = ('v', 'kv', 'qkv', 'qkvo')


class Look(NamedTuple):
    """An attention layer, and what it was called with for one image."""

    name: str
    stage: int  # from 1
    layer: nn.Module
    x: Tensor  # (1, T + H * W, C), T leading tokens
    grid: tuple[int, int]
    more: tuple[Any, ...] = ()  # further arguments

    @property
    def leading(self) -> int:
        return self.x.shape[1] - self.grid[0] * self.grid[1]

    @property
    def title(self) -> str:
        return self.name.removeprefix('stages.').replace('.blocks.', '.').removesuffix('.attn')


def backbone_of(model: nn.Module) -> nn.Module:
    """A detector's, a segmentor's or a classifier's backbone; a model without one is taken for it."""
    return getattr(model, 'backbone', model)


def attention_layers(model: nn.Module, stages: Iterable[int] | None = None) -> dict[str, nn.Module]:
    """Name -> layer, of the stages (from 1) or of all: layers that project values and, at their end, their heads."""
    layers = {name: module for name, module in backbone_of(model).named_modules() if _is_attention(module)}
    if not layers:
        raise ValueError(
            f'{type(backbone_of(model)).__name__} has no attention that can be looked at: a layer with num_heads, '
            f'a projection proj, and one of {", ".join(VALUES)}'
        )
    known = sorted({stage_of(name) for name in layers})
    for stage in () if stages is None else (stages := tuple(stages)):
        if stage not in known:
            raise ValueError(f'stage {stage!r} has no attention; those of the model are {", ".join(map(str, known))}')
    return {name: layer for name, layer in layers.items() if stages is None or stage_of(name) in stages}


def stage_of(name: str) -> int:
    """The stage, from 1, that a layer's name tells; a plain transformer is one stage."""
    found = re.match(r'stages\.(\d+)\.', name)
    return int(found[1]) + 1 if found else 1


def heads_of(layer: nn.Module) -> int:
    """The number of heads, of all branches together."""
    if hasattr(layer, 'num_heads'):
        return int(layer.num_heads)
    return sum(branch.num_heads for branch in layer.branches)


def _is_attention(module: nn.Module) -> bool:
    headed = hasattr(module, 'num_heads') or hasattr(module, 'branches')
    return headed and isinstance(getattr(module, 'proj', None), nn.Module) and values_of(module) is not None


def values_of(layer: nn.Module) -> nn.Module | None:
    """The projection that gives the values."""
    found = (getattr(layer, name, None) for name in VALUES)
    return next((module for module in found if isinstance(module, nn.Module)), None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation, and afterwards as it was."""
    modes = {module: module.training for module in model.modules()}
    try:
        for module in modes:
            module.training = False
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def hooked(*hooks: tuple[nn.Module, Callable[..., Any]], before: bool = False) -> Iterator[None]:
    """Forward hooks, or those ``before`` a module is called, for as long as the context lasts."""
    with ExitStack() as stack:
        for module, hook in hooks:
            register = module.register_forward_pre_hook if before else module.register_forward_hook
            stack.callback(register(hook).remove)
        yield


@torch.no_grad()
def look(model: nn.Module, image: Tensor, stages: Sequence[int] | None = None) -> list[Look]:
    """What the attention layers of these stages are called with for an image (1, C, H, W)."""
    check(image.dim() == 4 and image.shape[0] == 1, 'a look is at one image (1, C, H, W)', image=image)
    backbone, seen = backbone_of(model), {}
    layers = attention_layers(model, stages)

    def keep(layer: nn.Module, inputs: tuple[Any, ...]) -> None:
        seen[layer] = inputs

    with evaluating(backbone), hooked(*((layer, keep) for layer in layers.values()), before=True):
        backbone(image)
    missed = [name for name, layer in layers.items() if layer not in seen]
    if missed:
        raise ValueError(f'{type(backbone).__name__} does not call its attention {missed[0]}, which has no map then')
    return [Look(name, stage_of(name), layer, *_called(seen[layer])) for name, layer in layers.items()]


def _called(inputs: tuple[Any, ...]) -> tuple[Tensor, tuple[int, int], tuple[Any, ...]]:
    x, grid, *more = inputs
    return x, tuple(grid), tuple(more)
