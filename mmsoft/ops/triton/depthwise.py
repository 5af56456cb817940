"""A depth-wise convolution of tokens that lie on a grid, zero-padded, added to other tokens; all are read in place.

Kernels are each image's own or of all images, one a channel or one for several that follow each other. Tokens before
the grid have no part in it. dx is the convolution of the gradient with the kernels turned round; dkernel sums, over
chunks of pixels and then in order, the products of the gradient with the map shifted by each tap.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kernel_products import chunk_of
from .launch import operator, wrap_triton
from .residual import channel_total

PIXELS = 64  # in a tile
CHANNELS = 32


@triton.jit
def _shifted(x, row, column, channel, x_n, x_c, height, width, channels):
    """The map x at rows and columns, 0 outside: (..., channels)."""
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (channel < channels)
    return tl.load(x + (row * width + column) * x_n + channel * x_c, inside, 0.0).to(tl.float32)


@triton.jit
def _convolve_kernel(
    x, kernels, base, bias, y, x_b, x_n, x_c, k_b, base_b, base_n, base_c, first, height, width, channels, group,
    BASE: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """y (B, N, C); what float16 cannot hold becomes its largest value, but not in gradients (TURNED)."""
    n, image = first + height * width, tl.program_id(2).to(tl.int64)
    token = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    pixel, there = token - first, (token < n)[:, None] & (channel < channels)[None, :]
    row, column = tl.where(pixel < 0, -KH, pixel // width), pixel % width
    x += image * x_b + first * x_n
    kernels += image * k_b + channel // group * (KH * KW)
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for i in range(KH):
        for j in tl.static_range(KW):
            tap = i * KW + j
            weight = tl.load(kernels + (KH * KW - 1 - tap if TURNED else tap), channel < channels, 0.0).to(tl.float32)
            at, beside = (row + i - KH // 2)[:, None], (column + j - KW // 2)[:, None]
            total += _shifted(x, at, beside, channel[None, :], x_n, x_c, height, width, channels) * weight[None, :]
    if BIAS:
        shift = tl.load(bias + channel, channel < channels, 0.0).to(tl.float32)
        total += tl.where(pixel >= 0, 1.0, 0.0)[:, None] * shift[None, :]
    if BASE:
        at = base + image * base_b + token[:, None] * base_n + channel[None, :] * base_c
        total += tl.load(at, there, 0.0).to(tl.float32)
    if y.dtype.element_ty == tl.float16 and not TURNED:
        total = tl.clamp(total, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    at = y + (image * n + token)[:, None] * channels + channel[None, :]
    tl.store(at, total.to(y.dtype.element_ty), there)


@triton.jit
def _kernel_gradient_kernel(
    x, g, parts, x_b, x_n, x_c, g_b, g_n, g_c, first, height, width, channels, group, KH: tl.constexpr,
    KW: tl.constexpr, SUMMED: tl.constexpr, CHUNK: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """A row of the kernels' gradients from a chunk of pixels: parts (chunks, B, C / K, K, KH, KW) of K kernels.

    SUMMED: the channels of a program share a kernel, and their sum is one part.
    """
    chunk, i, image = tl.program_id(0) // KH, tl.program_id(0) % KH, tl.program_id(2).to(tl.int64)
    tap, channel = tl.arange(0, TAPS), tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    x += image * x_b + first * x_n
    g += image * g_b + first * g_n
    total = tl.zeros((TAPS, PIXELS, CHANNELS), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, height * width), PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        row, column = (pixel // width)[None, :, None], (pixel % width)[None, :, None]
        gradient = _shifted(g, row, column, channel[None, None, :], g_n, g_c, height, width, channels)
        beside = column + tap[:, None, None] - KW // 2
        total += gradient * _shifted(
            x, row + i - KH // 2, beside, channel[None, None, :], x_n, x_c, height, width, channels
        )
    sums = tl.sum(total, 1)  # (TAPS, CHANNELS)
    kernels = channels // group
    if SUMMED:
        start = tl.program_id(1) * CHANNELS
        member, kernel, members = start % group // CHANNELS, start // group, group // CHANNELS
        at = ((((chunk * tl.num_programs(2) + image) * members + member) * kernels + kernel) * KH + i) * KW
        tl.store(parts + at + tap, tl.sum(sums, 1), tap < KW)
    else:
        at = (((chunk * tl.num_programs(2) + image) * group + channel % group) * kernels + channel // group) * KH + i
        tl.store(parts + (at * KW)[None, :] + tap[:, None], sums, (tap < KW)[:, None] & (channel < channels)[None, :])


def _group(x: Tensor, kernels: Tensor) -> int:
    """Channels that share a kernel."""
    return x.shape[2] // kernels.shape[1]


@operator
def depthwise_add(
    base: Tensor | None, x: Tensor, kernels: Tensor, bias: Tensor | None, height: int, width: int, turned: bool,
    dtype: torch.dtype,
) -> Tensor:  # fmt: skip
    """x (B, T + H W, C) convolved by kernels (B or 1, K, kh, kw), and base (B, T + H W, C), bias (C) -> as base."""
    batch, n, channels = x.shape
    kernels = kernels.contiguous()
    y = x.new_empty(x.shape, dtype=dtype)
    base_strides = (0, 0, 0) if base is None else base.stride()
    grid = (triton.cdiv(n, PIXELS), triton.cdiv(channels, CHANNELS), batch)
    wrap_triton(_convolve_kernel, x)[grid](
        x, kernels, x if base is None else base, x if bias is None else bias, y, *x.stride(),
        kernels.stride(0) if len(kernels) > 1 else 0, *base_strides, n - height * width, height, width, channels,
        _group(x, kernels), BASE=base is not None, BIAS=bias is not None, TURNED=turned, KH=kernels.shape[2],
        KW=kernels.shape[3], PIXELS=PIXELS, CHANNELS=CHANNELS,
        num_warps=4 if base is None else 8,  # with 4, the base's tile would spill on sm_90
    )  # fmt: skip
    return y


@operator
def depthwise_gradient(x: Tensor, g: Tensor, kernels: Tensor, height: int, width: int) -> Tensor:
    """Parts of the kernels' gradient (..., K, kh, kw), of all images or (chunks, B, K, kh, kw), of x and g."""
    batch, n, channels = x.shape
    count, kh, kw = kernels.shape[1:]
    chunk, group = chunk_of(height * width), channels // count
    taps = triton.next_power_of_2(kw)
    pixels = max(min(4 * PIXELS // taps, PIXELS), 1)
    summed = group % CHANNELS == 0
    chunks = triton.cdiv(height * width, chunk)
    parts = x.new_empty((chunks, batch, group // CHANNELS if summed else group, count, kh, kw), dtype=torch.float32)
    wrap_triton(_kernel_gradient_kernel, x)[(chunks * kh, triton.cdiv(channels, CHANNELS), batch)](
        x, g, parts, *x.stride(), *g.stride(), n - height * width, height, width, channels, group, KH=kh, KW=kw,
        SUMMED=summed, CHUNK=chunk, TAPS=taps, PIXELS=pixels, CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return parts


def kernels_gradient(x: Tensor, g: Tensor, kernels: Tensor, height: int, width: int) -> Tensor:
    """The gradient of kernels (B or 1, K, kh, kw), given that of the result: two launches."""
    parts = depthwise_gradient(x, g, kernels, height, width)
    parts = parts.view(-1 if len(kernels) == 1 else len(parts), 1, kernels.numel())
    return channel_total(parts, kernels.dtype).view(kernels.shape)


def _setup(ctx, inputs: tuple, output: Tensor) -> None:
    base, x, kernels, bias, height, width, _turned, _dtype = inputs
    ctx.save_for_backward(x, kernels)
    ctx.options = height, width, None if base is None else base.dtype, None if bias is None else bias.dtype


def _backward(ctx, g: Tensor) -> tuple[Tensor | None, ...]:
    x, kernels = ctx.saved_tensors
    height, width, base, bias = ctx.options
    dx = depthwise_add(None, g, kernels, None, height, width, True, x.dtype)
    dk = kernels_gradient(x, g, kernels, height, width)
    first = x.shape[1] - height * width
    dbias = None if bias is None else g[:, first:].sum((0, 1), dtype=torch.float32).to(bias)
    return None if base is None else g.to(base), dx, dk, dbias, None, None, None, None


depthwise_add.register_autograd(_backward, setup_context=_setup)


def dynamic_depthwise(x: Tensor, kernels: Tensor) -> Tensor:
    """x (B, C, H, W), kernels (B, C, kh, kw) -> (B, C, H, W) in x's dtype, channels last."""
    return add_depthwise(None, x, kernels, None)


def add_depthwise(base: Tensor | None, x: Tensor, kernels: Tensor, bias: Tensor | None) -> Tensor:
    """The same, and base (B, C, H, W) and bias (C), if there are any."""
    height, width = x.shape[2:]
    tokens = None if base is None else _tokens(base)
    y = depthwise_add(tokens, _tokens(x), kernels, bias, height, width, False, x.dtype)
    return y.unflatten(1, (height, width)).permute(0, 3, 1, 2)


def _tokens(x: Tensor) -> Tensor:
    """Map (B, C, H, W) -> tokens (B, H W, C): a view, if rows follow each other."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)
