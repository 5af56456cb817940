"""Injective linear attention, whose rows are brought to sum 1 by subtraction, and a local term with predicted kernels.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checks import check, compute_dtype, saturating_cast
from .dispatch import eager_cpu, eager_gpu, is_graph, is_watched, no_autocast, no_triton, not_plain, operator
from .linear import linear_by_head


def inline_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Slow reference in float64: the N x N weights ``s/n q_i.k_j - s/n q_i.mean(k) + 1/n``, times v."""
    q, k, v = q.double(), k.double(), v.double()
    count = k.shape[-2]
    scores = q.shape[-1] ** -0.5 * q @ k.transpose(-1, -2) / count  # (B, h, N, n)
    weights = scores - scores.mean(-1, keepdim=True) + 1 / count
    return weights @ v


@operator(
    inline_attention_reference,
    example=lambda random: (random(2, 3, 9, 4), random(2, 3, 9, 4), random(2, 3, 9, 5)),
)
def inline_attention(q: Tensor, k: Tensor, v: Tensor, kernel: str = 'identity') -> Tensor:
    """``y_i = s/n q_i (K' V) + (1 - s q_i.mean(k)) mean(v)`` with ``s = d^(-1/2)``, in O(N d e).

    q (B, h, N, d) and k (B, h, n, d), which go through the kernel function first, v (B, h, n, e) -> (B, h, N, e) in
    v's dtype, computed in float32 or better whatever the autocast dtype.
    """
    _check_shapes(q, k, v)
    q, k = feature_map(q, kernel), feature_map(k, kernel)
    dtype = compute_dtype(q, k, v)
    with no_autocast(q):
        matrix, mean = _summary(k.to(dtype), v.to(dtype))
        y = linear_by_head(q.to(dtype).transpose(1, 2), matrix.transpose(-1, -2), mean.squeeze(2))
        return saturating_cast(y.transpose(1, 2), v.dtype)


def inline_against_triton(q: Tensor, k: Tensor, v: Tensor, kernel: str = 'identity') -> str | None:
    """What speaks against the kernels for these heads."""
    if reason := no_triton(q, k, v):
        return reason
    if k.shape != q.shape:
        return 'queries and keys differ in number'
    return 'heads are wider than 64 channels' if max(q.shape[-1], v.shape[-1]) > 64 else None


@inline_attention.also('triton', inline_against_triton)
def _inline_attention_triton(q: Tensor, k: Tensor, v: Tensor, kernel: str = 'identity') -> Tensor:
    from .triton import inline

    _check_shapes(q, k, v)
    return inline.inline_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), kernel).transpose(1, 2)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    check(
        q.dim() == k.dim() == v.dim() == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape[2] == v.shape[2],
        'inline_attention takes q (B, h, N, d), k (B, h, n, d), v (B, h, n, e)',
        q=q,
        k=k,
        v=v,
    )


def feature_map(x: Tensor, kernel: str) -> Tensor:
    """The kernel function of queries and keys, element by element."""
    if kernel == 'relu':
        return F.relu(x)
    if kernel == 'leaky_relu':
        return F.leaky_relu(x, 0.01)
    if kernel == 'exp':  # in float32, as float16 ends at exp(11); up to exp(40), or products of two would end it, too
        return torch.exp((0.2 * x.to(compute_dtype(x))).clamp(max=40.0))
    return x


def _summary(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """All that queries see of k (B, h, n, d) and v (B, h, n, e): matrix (B, h, d, e) and mean (B, h, 1, e).

    ``y = q s/n (K - mean(k))' V + mean(v)``, the same sum in another order: with centred keys its large terms
    do not cancel.
    """
    matrix = torch.matmul((k - k.mean(2, keepdim=True)).transpose(-1, -2), v)
    # float32 holds the sum over any image; half precision would need s / n on k and v before it
    return k.shape[-1] ** -0.5 / k.shape[-2] * matrix, v.mean(2, keepdim=True)


def dynamic_depthwise_reference(x: Tensor, kernels: Tensor) -> Tensor:
    """Slow reference of :func:`dynamic_depthwise` in float64: one convolution an image and channel."""
    pairs = zip(x.double().flatten(0, 1), kernels.double().flatten(0, 1), strict=True)
    planes = [F.conv2d(plane[None, None], kernel[None, None], padding=1) for plane, kernel in pairs]
    return torch.cat(planes).view(x.shape)


# On a CPU images of at most so many values are convolved together: by itself, a small one costs less than the call.
# oneDNN's backward is slow where maps are so low.
SMALL_MAP, LOW_MAP = 2**17, 2


def _against_grouped(x: Tensor, kernels: Tensor) -> str | None:
    return eager_gpu(x) or (None if x.numel() else 'there are no pixels')


def _against_by_image(x: Tensor, kernels: Tensor) -> str | None:
    return eager_cpu(x) or (None if x.numel() else 'there are no pixels')


@operator(dynamic_depthwise_reference, example=lambda random: (random(2, 4, 6, 5), random(2, 4, 3, 3)))
def dynamic_depthwise(x: Tensor, kernels: Tensor) -> Tensor:
    """A 3 x 3 convolution, zero-padded, with kernels of each image's own: x (B, C, H, W), kernels (B, C, 3, 3).

    As one convolution it has B C groups, and a graph that is exported would hold that number: graphs are a
    sum of nine shifted products.
    """
    _check_kernels(x, kernels)
    height, width = x.shape[2], x.shape[3]
    dtype = compute_dtype(x, kernels)
    padded, kernels = F.pad(x.to(dtype), (1, 1, 1, 1)), kernels.to(dtype)
    y = torch.zeros_like(x, dtype=dtype)
    for i in range(3):
        for j in range(3):
            y = y + padded[:, :, i : i + height, j : j + width] * kernels[:, :, i, j, None, None]
    return saturating_cast(y, x.dtype)


@dynamic_depthwise.also('gpu', _against_grouped)
def _dynamic_depthwise_gpu(x: Tensor, kernels: Tensor) -> Tensor:
    _check_kernels(x, kernels)
    planes, weight = x.flatten(0, 1).unsqueeze(0), kernels.flatten(0, 1).unsqueeze(1)
    return F.conv2d(planes, weight, padding=1, groups=planes.shape[1]).view(x.shape)


@dynamic_depthwise.also('cpu', _against_by_image)
def _dynamic_depthwise_cpu(x: Tensor, kernels: Tensor) -> Tensor:
    """CPUs have a fast convolution for each image that is channels last; many small ones are channels of one map."""
    _check_kernels(x, kernels)
    batch, channels, height, width = x.shape
    if batch > 1 and height > LOW_MAP and channels * height * width <= SMALL_MAP:
        planes = x.permute(2, 3, 0, 1).reshape(1, height, width, batch * channels).permute(0, 3, 1, 2)
        y = F.conv2d(planes, kernels.flatten(0, 1).unsqueeze(1), padding=1, groups=batch * channels)
        return y.unflatten(1, (batch, channels)).squeeze(0)
    pairs = zip(x.split(1), kernels.unsqueeze(2).unbind(), strict=True)
    images = [F.conv2d(image, kernel, padding=1, groups=channels) for image, kernel in pairs]
    return torch.cat(images) if batch > 1 else images[0]


def _depthwise_against_triton(x: Tensor, kernels: Tensor) -> str | None:
    return no_triton(x, kernels) or (None if x.numel() else 'there are no pixels')


@dynamic_depthwise.also('triton', _depthwise_against_triton)
def _dynamic_depthwise_triton(x: Tensor, kernels: Tensor) -> Tensor:
    """Without the copies that a map's planes, one after the other, would need."""
    from .triton import depthwise

    _check_kernels(x, kernels)
    return depthwise.dynamic_depthwise(x, kernels)


def _check_kernels(x: Tensor, kernels: Tensor) -> None:
    check(
        x.dim() == 4 and kernels.shape == (*x.shape[:2], 3, 3),
        'dynamic_depthwise takes x (B, C, H, W) and kernels (B, C, 3, 3)',
        x=x,
        kernels=kernels,
    )


def _add_depthwise_example(random: Callable[..., Tensor]) -> tuple[Tensor, Tensor, Tensor, nn.Module]:
    return random(2, 4, 6, 5), random(2, 4, 6, 5), random(2, 4, 3, 3), nn.Conv2d(4, 4, 3, padding=1, groups=4)


@operator(example=_add_depthwise_example)
def add_depthwise(y: Tensor, x: Tensor, kernels: Tensor, conv: nn.Module) -> Tensor:
    """``y`` and two 3 x 3 depth-wise convolutions of x, both (B, C, H, W): by kernels (B, C, 3, 3), and by ``conv``."""
    return y + dynamic_depthwise(x, kernels) + conv(x)


def _against_one_convolution(y: Tensor, x: Tensor, kernels: Tensor, conv: nn.Module) -> str | None:
    if type(conv) is not nn.Conv2d:
        return 'something else stands for Conv2d'
    if is_graph():  # which keeps no hooks
        return None
    return not_plain(conv.weight, conv.bias) or ('hooks hang on the convolution' if is_watched(conv) else None)


@add_depthwise.also('folded', _against_one_convolution)
def _add_depthwise_folded(y: Tensor, x: Tensor, kernels: Tensor, conv: nn.Module) -> Tensor:
    """The sum of both kernels makes one convolution."""
    weight, bias = cast(Tensor, conv.weight), cast(Tensor, conv.bias)
    return y + dynamic_depthwise(x, kernels + weight.squeeze(1)) + bias.view(-1, 1, 1)


def _against_one_launch(y: Tensor, x: Tensor, kernels: Tensor, conv: nn.Module) -> str | None:
    if reason := _against_one_convolution(y, x, kernels, conv):
        return reason
    return no_triton(y, x, kernels) or (None if x.numel() else 'there are no pixels')


@add_depthwise.also('triton', _against_one_launch)
def _add_depthwise_triton(y: Tensor, x: Tensor, kernels: Tensor, conv: nn.Module) -> Tensor:
    """Sums of three maps, which the folded version makes one after the other, are one launch."""
    from .triton import depthwise

    weight, bias = cast(Tensor, conv.weight), cast(Tensor, conv.bias)
    return depthwise.add_depthwise(y, x, kernels + weight.squeeze(1), bias)
