"""Attention's local term: a depth-wise convolution of the values, added to what the attention gives."""

import torch.nn.functional as F
from torch import Tensor

from .checks import check
from .dispatch import no_triton, operator
from .inline import (
    dynamic_depthwise,
    dynamic_depthwise_reference,
    feature_map,
    inline_against_triton,
    inline_attention,
    inline_attention_reference,
)
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
    if max(kernels.shape[2:]) > WIDEST or not all(side % 2 for side in kernels.shape[2:]):
        return f'kernels are wider than {WIDEST} or have no centre'
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


def inline_with_convolution_reference(
    q: Tensor, kv: Tensor, kernels: Tensor, grid: tuple[int, int], heads: int, kernel: str = 'identity'
) -> Tensor:
    """Slow reference in float64."""
    k, v = kv.double().chunk(2, -1)
    heads_of = [_by_head(x, heads) for x in (feature_map(q.double(), kernel), feature_map(k, kernel), v)]
    y = inline_attention_reference(*heads_of).transpose(1, 2).flatten(2)
    return add_predicted_convolution_reference(y, v, kernels, grid)


@operator(
    inline_with_convolution_reference,
    example=lambda random: (random(2, 21, 6), random(2, 21, 12), random(2, 6, 3, 3), (4, 5), 3),
)
def inline_with_convolution(
    q: Tensor, kv: Tensor, kernels: Tensor, grid: tuple[int, int], heads: int, kernel: str = 'identity'
) -> Tensor:
    """InLine attention of q (B, T + H W, C) and kv (B, T + H W, 2 C), and a convolution of the values -> q's shape.

    The convolution is :func:`add_predicted_convolution`'s; queries and keys go through the kernel function first.
    """
    check(
        q.dim() == 3 and kv.shape == (*q.shape[:2], 2 * q.shape[2]) and q.shape[2] % heads == 0,
        f'inline_with_convolution takes q (B, N, C) and kv (B, N, 2 C), C a multiple of {heads} heads',
        q=q,
        kv=kv,
    )
    k, v = kv.chunk(2, -1)
    y = inline_attention(_by_head(q, heads), _by_head(k, heads), _by_head(v, heads), kernel).transpose(1, 2).flatten(2)
    return add_predicted_convolution(y, v, kernels, grid)


def _by_head(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, h, N, d)


def _inline_against_triton(
    q: Tensor, kv: Tensor, kernels: Tensor, grid: tuple[int, int], heads: int, kernel: str = 'identity'
) -> str | None:
    if q.dim() != 3 or kv.shape != (*q.shape[:2], 2 * q.shape[2]) or q.shape[2] % heads:
        return 'q is not (B, N, C), or kv not (B, N, 2 C)'
    k, v = kv.chunk(2, -1)
    against = inline_against_triton(_by_head(q, heads), _by_head(k, heads), _by_head(v, heads))
    return against or _against_triton(q, kv, kernels, grid)


@inline_with_convolution.also('triton', _inline_against_triton)
def _inline_with_convolution_triton(
    q: Tensor, kv: Tensor, kernels: Tensor, grid: tuple[int, int], heads: int, kernel: str = 'identity'
) -> Tensor:
    """As the two, but the gradients of keys and of values, from both terms, are written once and together."""
    from .triton import inline

    return inline.inline_with_convolution(q, kv, kernels, grid, heads, kernel)
