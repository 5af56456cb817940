"""A 3 x 3 depth-wise convolution with kernels of each image's own, zero-padded; maps are read in place.

dx is the convolution of the gradient with the kernels turned round; dkernel sums, over chunks of pixels and then in
order, the products of the gradient with the map shifted by each of the nine taps.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .kernel_products import chunk_of, kernel_total
from .launch import operator, wrap_triton

PIXELS = 64  # in a tile
CHANNELS = 32


@triton.jit
def _shifted(
    x, pixel, channel, tap, x_c, x_h, x_w, height, width, channels
):  # fmt: skip
    """The map x at pixels moved by a tap of a 3 x 3 kernel, 0 outside: (pixels, channels)."""
    row, column = pixel // width + tap // 3 - 1, pixel % width + tap % 3 - 1
    inside = (pixel < height * width) & (row >= 0) & (row < height) & (column >= 0) & (column < width)
    at = x + (row * x_h + column * x_w)[:, None] + (channel * x_c)[None, :]
    return tl.load(at, inside[:, None] & (channel < channels)[None, :], 0.0).to(tl.float32)


@triton.jit
def _convolve_kernel(
    x, kernels, y, x_b, x_c, x_h, x_w, height, width, channels, TURNED: tl.constexpr, PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """y (B, H W, C); what float16 cannot hold becomes its largest value, but not in gradients (TURNED)."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    image = tl.program_id(2).to(tl.int64)
    x += image * x_b
    kernels += (image * channels + channel) * 9
    total = tl.zeros((PIXELS, CHANNELS), tl.float32)
    for tap in tl.static_range(9):
        weight = tl.load(kernels + (8 - tap if TURNED else tap), channel < channels, 0.0).to(tl.float32)
        total += _shifted(x, pixel, channel, tap, x_c, x_h, x_w, height, width, channels) * weight[None, :]
    if y.dtype.element_ty == tl.float16 and not TURNED:
        total = tl.clamp(total, -65504.0, 65504.0, propagate_nan=tl.PropagateNan.ALL)
    at = y + (image * height * width + pixel)[:, None] * channels + channel[None, :]
    tl.store(at, total.to(y.dtype.element_ty), (pixel < height * width)[:, None] & (channel < channels)[None, :])


@triton.jit
def _kernel_gradient_kernel(
    x, g, parts, x_b, x_c, x_h, x_w, g_b, g_c, g_h, g_w, height, width, channels, CHUNK: tl.constexpr,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The kernels' gradients from a chunk of pixels: parts (chunks, B, C, 9)."""
    chunk, image = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channel, taps = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS), tl.arange(0, 16)
    x += image * x_b
    g += image * g_b
    total = tl.zeros((CHANNELS, 16), tl.float32)
    for start in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, height * width), PIXELS):
        pixel = start + tl.arange(0, PIXELS)
        gradient = _shifted(g, pixel, channel, 4, g_c, g_h, g_w, height, width, channels)  # tap 4 is the centre
        for tap in tl.static_range(9):
            value = _shifted(x, pixel, channel, tap, x_c, x_h, x_w, height, width, channels)
            total += tl.where(taps[None, :] == tap, tl.sum(value * gradient, 0)[:, None], 0.0)
    at = ((chunk * tl.num_programs(2) + image) * channels + channel)[:, None] * 9 + taps[None, :]
    tl.store(parts + at, total, (channel < channels)[:, None] & (taps < 9)[None, :])


@operator
def depthwise_convolve(x: Tensor, kernels: Tensor, turned: bool, dtype: torch.dtype) -> Tensor:
    """x (B, C, H, W), contiguous kernels (B, C, 3, 3) -> (B, C, H, W) of this dtype, channels last."""
    batch, channels, height, width = x.shape
    y = x.new_empty((batch, height, width, channels), dtype=dtype)
    grid = (triton.cdiv(height * width, PIXELS), triton.cdiv(channels, CHANNELS), batch)
    wrap_triton(_convolve_kernel, x)[grid](
        x, kernels, y, *x.stride(), height, width, channels, TURNED=turned, PIXELS=PIXELS, CHANNELS=CHANNELS,
        num_warps=4,
    )  # fmt: skip
    return y.permute(0, 3, 1, 2)


@operator
def depthwise_gradient(x: Tensor, g: Tensor) -> Tensor:
    """Parts of the kernels' gradient (chunks, B, C, 1, 9) of x and g (B, C, H, W)."""
    batch, channels, height, width = x.shape
    chunk = chunk_of(height * width)
    parts = x.new_empty((triton.cdiv(height * width, chunk), batch, channels, 1, 9), dtype=torch.float32)
    wrap_triton(_kernel_gradient_kernel, x)[(parts.shape[0], triton.cdiv(channels, CHANNELS), batch)](
        x, g, parts, *x.stride(), *g.stride(), height, width, channels, CHUNK=chunk, PIXELS=PIXELS,
        CHANNELS=CHANNELS, num_warps=4,
    )  # fmt: skip
    return parts


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, kernels: Tensor) -> Tensor:
        kernels = kernels.contiguous()
        ctx.save_for_backward(x, kernels)
        return depthwise_convolve(x, kernels, False, x.dtype)

    @staticmethod
    def backward(ctx, g: Tensor) -> tuple[Tensor, Tensor]:
        x, kernels = ctx.saved_tensors
        grad = kernel_total(depthwise_gradient(x, g), kernels.dtype)
        return depthwise_convolve(g, kernels, True, x.dtype), grad.view(kernels.shape)


def dynamic_depthwise(x: Tensor, kernels: Tensor) -> Tensor:
    """x (B, C, H, W), kernels (B, C, 3, 3) -> (B, C, H, W) in x's dtype, channels last."""
    return _Depthwise.apply(x, kernels)
