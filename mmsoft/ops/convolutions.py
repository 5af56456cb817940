"""Convolutions whose stride is their window, and convolutions that BatchNorm and ReLU follow."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dispatch import eager_cpu, graph, is_autocast, is_graph, is_watched, not_plain, operator

# On smaller maps it costs more to scale the weights than the output.
FOLDED_PIXELS = 4096


def window_conv_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Slow reference of :func:`window_conv` in float64: one window at a time."""
    weight = weight.double()
    rh, rw = weight.shape[2:]
    windows = [
        [(x[:, None, :, i : i + rh, j : j + rw].double() * weight).sum((2, 3, 4)) for j in _starts(x.shape[3], rw)]
        for i in _starts(x.shape[2], rh)
    ]
    y = torch.stack([torch.stack(row, -1) for row in windows], -2)
    return y if bias is None else y + bias.double()[:, None, None]


def _starts(size: int, window: int) -> range:
    return range(0, size - window + 1, window)


@operator(window_conv_reference, example=lambda random: (random(2, 4, 9, 7), random(6, 4, 2, 3), random(6)))
def window_conv(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A convolution with stride = window, unpadded: x (B, C, H, W), weight (K, C, rh, rw) -> (B, K, H // rh, W // rw).

    It is computed as the product of all windows with the weight. oneDNN is wrong by 100 % in such convolutions in
    bfloat16 on CPUs with AMX where the channels are fewer than 32 and the stride is 4 or more (torch 2.6 and 2.12); the
    product is right everywhere.
    """
    rh, rw = weight.shape[2:]
    gh, gw = x.shape[-2] // rh, x.shape[-1] // rw
    windows = x[..., : gh * rh, : gw * rw].unflatten(-1, (gw, rw)).unflatten(-3, (gh, rh))  # (B, C, gh, rh, gw, rw)
    windows = windows.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, gh, gw, C * rh * rw)
    return F.linear(windows, weight.flatten(1), bias).permute(0, 3, 1, 2)


def _against_convolution(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    return None if is_graph() else 'outside of graphs the product is as fast'


@window_conv.also('graph', _against_convolution)
def _window_conv_graph(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Graphs keep the convolution: torch.compile takes minutes for the product's sizes where these are symbols."""
    return F.conv2d(x, weight, bias, stride=weight.shape[2:])


@operator()
def conv_unit(x: Tensor, unit: nn.Sequential) -> Tensor:
    """What the parts of ``unit`` make of x (B, C, H, W) in turn: convolution, BatchNorm, ReLU or what replaces them."""
    for part in unit:
        x = part(x)
    return x


@conv_unit.also('cpu', eager_cpu)
def _conv_unit_cpu(x: Tensor, unit: nn.Sequential) -> Tensor:
    """On a map smaller than the weights, torch would bring these to its layout, at more than the convolution's cost."""
    weight = getattr(unit[0], 'weight', None)
    if isinstance(weight, Tensor) and weight.numel() > x.numel():
        x = x.contiguous()
    for part in unit:
        x = part(x)
    return x


def _against_folding(x: Tensor, unit: nn.Sequential) -> str | None:
    """Folding asks for what was built, a fixed map: others may have put in, or hung on, something else."""
    if reason := eager_cpu(x):
        return reason
    if x.shape[-2] * x.shape[-1] <= FOLDED_PIXELS:
        return f'the map has at most {FOLDED_PIXELS} pixels'
    if [type(part) for part in unit] != [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]:
        return 'the unit is not Conv2d, BatchNorm2d, ReLU'
    conv, norm = _parts(unit)
    if norm.training:
        return 'BatchNorm is in training'
    if any(part is None for part in (conv.bias, norm.weight, norm.running_var)):
        return 'the unit lacks a bias, a scale or statistics'
    if conv.weight.dtype != torch.float32:
        return 'weights are not float32'
    return not_plain(x, conv.weight) or ('hooks hang on the unit' if is_watched(unit) else None)


@conv_unit.also('cpu', _against_folding)
def _conv_unit_folded(x: Tensor, unit: nn.Sequential) -> Tensor:
    """In evaluation BatchNorm is a scale and a shift, which the convolution takes in: one pass less."""
    conv, norm = _parts(unit)
    if conv.weight.numel() > x.numel():
        x = x.contiguous()
    mean, variance, shift = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var), cast(Tensor, conv.bias)
    scale = norm.weight * (variance + norm.eps).rsqrt()
    weight = conv.weight * scale.view(-1, 1, 1, 1)
    bias = norm.bias + (shift - mean) * scale
    return F.conv2d(x, weight, bias, cast(tuple[int, int], conv.stride), conv.padding).relu_()


def _parts(unit: nn.Sequential) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    return cast(nn.Conv2d, unit[0]), cast(nn.BatchNorm2d, unit[1])


@operator()
def squeezed_convolution(x: Tensor, expand: nn.Conv2d, spread: nn.Conv2d, squeeze: nn.Conv2d) -> Tensor:
    """Three convolutions of x (B, C, H, W) with ReLUs between them: 1 x 1 to many channels, depth-wise, 1 x 1."""
    return squeeze(F.relu(spread(F.relu(expand(x), inplace=True)), inplace=True))


def _against_channel_slices(x: Tensor, expand: nn.Conv2d, spread: nn.Conv2d, squeeze: nn.Conv2d) -> str | None:
    if reason := eager_cpu(x):
        return reason
    parts = (expand, spread, squeeze)
    if torch.is_grad_enabled():
        return 'gradients are kept'
    if any(type(conv) is not nn.Conv2d or conv.bias is None for conv in parts):
        return 'something else stands for a Conv2d with a bias'
    if any(is_watched(conv) for conv in parts):
        return 'hooks hang on a convolution'
    return not_plain(x, *(conv.weight for conv in parts))


@squeezed_convolution.also('cpu', _against_channel_slices)
def _squeezed_convolution_sliced(x: Tensor, expand: nn.Conv2d, spread: nn.Conv2d, squeeze: nn.Conv2d) -> Tensor:
    """As many hidden channels at a time as x has: the wide map never exists whole."""
    biases = [cast(Tensor, conv.bias) for conv in (expand, spread, squeeze)]
    y = biases[2].view(-1, 1, 1)
    for start in range(0, expand.out_channels, expand.in_channels):
        part = slice(start, start + expand.in_channels)
        hidden = F.conv2d(x, expand.weight[part], biases[0][part]).relu_()
        weight, stride = spread.weight[part], cast(tuple[int, int], spread.stride)
        hidden = F.conv2d(hidden, weight, biases[1][part], stride, spread.padding, groups=len(weight)).relu_()
        y = F.conv2d(hidden, squeeze.weight[:, part]) + y
    return y


@operator()
def add_convolved(x: Tensor, conv: nn.Module) -> Tensor:
    """``x + conv(x)`` of a map (B, C, H, W), conv depth-wise and padded to keep its size."""
    return x + conv(x)


def _against_identity(x: Tensor, conv: nn.Module) -> str | None:
    if reason := graph():
        return reason
    if type(conv) is not nn.Conv2d or conv.groups != conv.out_channels:
        return 'something else stands for a depth-wise Conv2d'
    if conv.weight.dtype != torch.float32 or x.dtype != torch.float32 or is_autocast(x):
        return 'half precision would round the sum of identity and kernel'
    return not_plain(x, conv.weight) or ('hooks hang on the convolution' if is_watched(conv) else None)


@add_convolved.also('folded', _against_identity)
def _add_convolved_folded(x: Tensor, conv: nn.Module) -> Tensor:
    """One pass: the identity is 1 in the middle of each kernel."""
    conv = cast(nn.Conv2d, conv)
    height, width = conv.kernel_size
    weight = conv.weight + F.pad(conv.weight.new_ones(1, 1, 1, 1), (width // 2,) * 2 + (height // 2,) * 2)
    return F.conv2d(x, weight, conv.bias, padding=conv.padding, groups=conv.groups)
