"""Residual sums, dropped for some images in training, and the LayerNorm that follows them."""

from typing import cast

import torch
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from .dispatch import eager_gpu, is_graph, is_watched, no_triton, operator


def add_norm_reference(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Slow reference in float64: the sum, and each of its tokens with mean 0 and variance 1, scaled and shifted."""
    s = x.double() + y.double()
    centred = s - s.mean(-1, keepdim=True)
    return s, centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double() + bias.double()


@operator(example=lambda random: (random(2, 5, 8), random(2, 5, 8), nn.Identity()))
def add_residual(x: Tensor, y: Tensor, drop: nn.Module) -> Tensor:
    """``x + drop(y)`` of tokens (B, N, C)."""
    return x + drop(y)


def _against_one_pass(x: Tensor, y: Tensor, drop: nn.Module) -> str | None:
    if reason := eager_gpu(x):
        return reason
    if not drops(drop):
        return 'nothing is dropped'
    return _not_ours(drop) or (None if x.dtype == y.dtype else 'both sides differ in dtype')


@add_residual.also('gpu', _against_one_pass)
def _add_residual_gpu(x: Tensor, y: Tensor, drop: nn.Module) -> Tensor:
    noise, share = kept(y, drop)
    return torch.addcmul(x, y, noise.view(-1, 1, 1), value=share)


@operator(example=lambda random: (random(2, 5, 8), random(2, 5, 8), nn.LayerNorm(8), nn.Identity()))
def add_norm(x: Tensor, y: Tensor, norm: nn.Module, drop: nn.Module, keep: bool = True) -> tuple[Tensor, Tensor]:
    """``s = x + drop(y)`` and ``norm(s)`` of tokens (B, N, C); unless to be kept, s may be empty."""
    s = x + drop(y)
    return s, norm(s)


def _against_triton(x: Tensor, y: Tensor, norm: nn.Module, drop: nn.Module, keep: bool = True) -> str | None:
    if type(norm) is not nn.LayerNorm or norm.bias is None:
        return 'the norm is not a LayerNorm with scale and shift'
    if reason := no_triton(x, y, norm.weight, norm.bias):
        return reason
    if not is_graph() and is_watched(norm):  # graphs keep no hooks
        return 'hooks hang on the norm'
    if x.dim() != 3 or y.shape != x.shape or norm.weight.shape != x.shape[-1:]:
        return 'sides differ in shape, or the norm is not over the channels of (B, N, C) alone'
    if not 0 < x.shape[-1] <= 2048 or not x.numel():
        return 'there are no tokens, or more than 2048 channels'
    if not _in_autocast(x) and norm.weight.dtype != _sum_dtype(x, y):
        return "the norm's weights are of another dtype"
    return _not_ours(drop) if drops(drop) else None


@add_norm.also('triton', _against_triton)
def _add_norm_triton(
    x: Tensor, y: Tensor, norm: nn.Module, drop: nn.Module, keep: bool = True
) -> tuple[Tensor, Tensor]:
    from .triton import residual

    norm = cast(nn.LayerNorm, norm)
    noise, share = kept(y, drop) if drops(drop) else (None, 1.0)
    dtype = torch.float32 if _in_autocast(x) else _sum_dtype(x, y)
    keep = keep or torch.is_grad_enabled()
    return residual.add_norm(x, y, norm.weight, norm.bias, noise, share, norm.eps, keep, dtype)


def drops(drop: nn.Module) -> bool:
    """Whether the module does something to its input."""
    if type(drop) is StochasticDepth:
        return drop.training and drop.p > 0
    return type(drop) is not nn.Identity


def kept(y: Tensor, drop: nn.Module) -> tuple[Tensor, float]:
    """Which images keep y (B), 1 or 0, and what it is multiplied by for them: as StochasticDepth draws and scales."""
    survival = 1 - cast(StochasticDepth, drop).p
    noise = y.new_empty(len(y)).bernoulli_(survival)
    return noise, 1 / survival if survival else 1.0


def _not_ours(drop: nn.Module) -> str | None:
    if type(drop) is not StochasticDepth or drop.mode != 'row':
        return 'what is dropped is not an image'
    return 'hooks hang on what drops' if not is_graph() and is_watched(drop) else None


def _in_autocast(x: Tensor) -> bool:
    """Whether LayerNorm gives float32, as autocast on GPUs has it."""
    return x.device.type == 'cuda' and torch.is_autocast_enabled('cuda')


def _sum_dtype(x: Tensor, y: Tensor) -> torch.dtype:
    """Of ``x + y`` in float32, float16 or bfloat16; counters would see torch.promote_types."""
    return x.dtype if x.dtype == y.dtype else torch.float32
