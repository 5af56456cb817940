"""What treats every token by itself, run over slices of them and computed again in backward where that pays."""

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .dispatch import eager_cpu, has_backward, is_watched, not_exported_with, operator

Function = Callable[..., Tensor]

# On a CPU slices have this many hidden values (8 MiB in float32), which stay in its cache: faster on large maps, and
# the hidden map never exists whole.
HIDDEN_SLICE = 2**21
# In a program that is exported, of a picture: twice as many, as each slice is written out.
EXPORTED_SLICE = 2**22


@operator()
def token_wise(
    x: Tensor, *others: Tensor, function: Function, module: nn.Module, hidden: int, recompute: bool | None = None
) -> Tensor:
    """``function(x, *others)`` of tokens (..., C), each mapped by itself to C values: a method of ``module``.

    ``hidden`` is how many values it makes of a token on the way. ``recompute``: backward computes these again, or keeps
    them; None computes them again where they are cut into slices, and keeps them elsewhere.
    """
    return _run(function, (x, *others), bool(recompute))


def _against_slices(
    x: Tensor, *others: Tensor, function: Function, module: nn.Module, hidden: int, recompute: bool | None = None
) -> str | None:
    return eager_cpu(x) or ('hooks hang on the module, which are shown no slices' if is_watched(module) else None)


@token_wise.also('cpu', _against_slices)
def _token_wise_cpu(
    x: Tensor, *others: Tensor, function: Function, module: nn.Module, hidden: int, recompute: bool | None = None
) -> Tensor:
    tokens = [t.flatten(0, -2) for t in (x, *others)]
    length = max(HIDDEN_SLICE // hidden, 1)
    count = len(tokens[0])
    if count <= length:
        return _run(function, tokens, recompute is not False).view(x.shape)
    slices = list(zip(*(t.split(length) for t in tokens), strict=True))
    if torch.is_grad_enabled():
        return torch.cat([_run(function, part, recompute is not False) for part in slices]).view(x.shape)
    first = function(*slices[0])
    y = first.new_empty(tokens[0].shape)  # filled slice by slice: what backward does not need need not exist twice
    y[:length] = first
    for start, part in zip(range(length, count, length), slices[1:], strict=True):
        y[start : start + length] = function(*part)
    return y.view(x.shape)


def _against_written_slices(
    x: Tensor, *others: Tensor, function: Function, module: nn.Module, hidden: int, recompute: bool | None = None
) -> str | None:
    return not_exported_with(x.shape[-2])


@token_wise.also('export', _against_written_slices)
def _token_wise_export(
    x: Tensor, *others: Tensor, function: Function, module: nn.Module, hidden: int, recompute: bool | None = None
) -> Tensor:
    count = -(-x.shape[-2] * hidden // EXPORTED_SLICE)
    slices = zip(*(t.tensor_split(count, -2) for t in (x, *others)), strict=True)
    return torch.cat([_run(function, part, bool(recompute)) for part in slices], -2)


@operator()
def map_wise(x: Tensor, *, function: Function, recompute: bool | None = None) -> Tensor:
    """``function(x)`` of tokens that mix with their neighbours, so that no slices are cut; ``recompute`` as above."""
    return _run(function, (x,), bool(recompute))


@map_wise.also('cpu', eager_cpu)
def _map_wise_cpu(x: Tensor, *, function: Function, recompute: bool | None = None) -> Tensor:
    return _run(function, (x,), recompute is not False)


def _run(function: Function, tensors: Iterable[Tensor], recompute: bool) -> Tensor:
    if recompute and has_backward():
        return cast(Tensor, checkpoint(function, *tensors, use_reentrant=False))
    return function(*tensors)
