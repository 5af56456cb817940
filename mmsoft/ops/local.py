"""Attention's local term: a depth-wise convolution of the values, added to what the attention gives."""

import torch.nn.functional as F
from torch import Tensor

from .dispatch import no_triton, operator
from .inline import dynamic_depthwise, dynamic_depthwise_reference
from .layout import to_map, to_tokens

WIDEST = 32  # kernel that Triton serves


def add_head_convolution_reference(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Slow reference in float64: each channel of the grid by its head's kernel, one at a time."""
    y, v, first = y.double().clone(), v.double(), y.shape[1] - grid[0] * grid[1]
    padding = kernels.shape[2] // 2, kernels.shape[3] // 2
    weights = kernels.double().repeat_interleave(v.shape[2] // len(kernels), 0)
    for channel, weight in enumerate(weights):
        plane = v[:, first:, channel].unflatten(1, grid).unsqueeze(1)
        y[:, first:, channel] += F.conv2d(plane, weight[None], padding=padding).flatten(1)
    return y


@operator(
    add_head_convolution_reference,
    example=lambda random: (random(2, 21, 6), random(2, 21, 6), random(3, 1, 3, 5), (4, 5)),
)
def add_head_convolution(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    """``y`` and a convolution of v (B, T + H W, C), both, by kernels (h, 1, kh, kw), one a head of C / h channels.

    The T tokens before grid (H, W) have no part in it.
    """
    weight = kernels.repeat_interleave(v.shape[2] // len(kernels), 0)  # (C, 1, kh, kw)
    padding = (weight.shape[2] // 2, weight.shape[3] // 2)
    first = v.shape[1] - grid[0] * grid[1]
    local = to_tokens(F.conv2d(to_map(v[:, first:], grid), weight, padding=padding, groups=v.shape[2]))
    if first:
        local = F.pad(local, (0, 0, first, 0))
    return local.add_(y)


def _against_triton(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> str | None:
    if reason := no_triton(y, v, kernels):
        return reason
    if max(kernels.shape[2:]) > WIDEST:
        return f'kernels are wider than {WIDEST}'
    return None if v.numel() else 'there are no tokens'


@add_head_convolution.also('triton', _against_triton)
def _add_head_convolution_triton(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Heads read one kernel, which is repeated nowhere."""
    from .triton.depthwise import depthwise_add

    return depthwise_add(y, v, kernels.transpose(0, 1), None, *grid, False, v.dtype)


def add_predicted_convolution_reference(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    """Slow reference in float64."""
    y, first = y.double().clone(), y.shape[1] - grid[0] * grid[1]
    y[:, first:] += to_tokens(dynamic_depthwise_reference(to_map(v[:, first:], grid), kernels))
    return y


@operator(
    add_predicted_convolution_reference,
    example=lambda random: (random(2, 21, 6), random(2, 21, 6), random(2, 6, 3, 3), (4, 5)),
)
def add_predicted_convolution(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    """``y`` and a convolution of v (B, T + H W, C), both, by kernels (B, C, 3, 3) of each image's own.

    The T tokens before grid (H, W) have no part in it.
    """
    first = v.shape[1] - grid[0] * grid[1]
    local = to_tokens(dynamic_depthwise(to_map(v[:, first:], grid), kernels))
    return y + (F.pad(local, (0, 0, first, 0)) if first else local)


@add_predicted_convolution.also('triton', _against_triton)
def _add_predicted_convolution_triton(y: Tensor, v: Tensor, kernels: Tensor, grid: tuple[int, int]) -> Tensor:
    from .triton.depthwise import depthwise_add

    return depthwise_add(y, v, kernels, None, *grid, False, v.dtype)
