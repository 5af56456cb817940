"""Products of many tokens with few weights, by the fastest public road of each device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .dispatch import eager_cpu, not_plain, operator

# On CPUs torch sends float32 products to MKL, which leaves half of some processors' vector units idle; its
# convolutions go to oneDNN (with two threads or more), which does not. A linear map of tokens is a 1 x 1 convolution.
HAS_ONEDNN = torch.backends.mkldnn.is_available()


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Slow reference of :func:`linear` in float64: one sum of products a value."""
    y = (x.double().unsqueeze(-2) * weight.double()).sum(-1)
    return y if bias is None else y + bias.double()


@operator(linear_reference, example=lambda random: (random(2, 5, 7), random(6, 7), random(6)))
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W' + b``, as :func:`torch.nn.functional.linear`: x (..., C), weight (K, C) -> (..., K)."""
    return F.linear(x, weight, bias)


def _against_onednn(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    if (reason := eager_cpu(x)) or (reason := not_plain(x, weight, bias)):
        return reason
    if not HAS_ONEDNN:
        return 'torch is built without oneDNN'
    if x.dtype == torch.float64:
        return 'oneDNN has no float64'
    return None if x.numel() else 'there are no tokens'


@linear.also('cpu', _against_onednn)
def _linear_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = _convolve(x.reshape(-1, x.shape[-1]), weight, bias, 1)
    return y.view(x.shape[:-1] + weight.shape[:1])


def linear_by_head_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Slow reference of :func:`linear_by_head` in float64."""
    y = torch.einsum('bnhd,bhkd->bnhk', x.double(), weight.double())
    return y if bias is None else y + bias.double().unsqueeze(1)


@operator(linear_by_head_reference, example=lambda random: (random(1, 9, 3, 4), random(1, 3, 5, 4), random(1, 3, 5)))
def linear_by_head(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map for every image and head: x (B, N, h, d), weight (B, h, k, d), bias (B, h, k) -> (B, N, h, k)."""
    y = torch.matmul(x.transpose(1, 2), weight.transpose(-1, -2)).transpose(1, 2)
    return y if bias is None else y + bias.unsqueeze(1)


def _against_one_image(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> str | None:
    if reason := _against_onednn(x, weight, bias):
        return reason
    if x.shape[0] != 1:
        return 'there is not one image'
    return None if x.dtype == torch.float32 else 'tokens are not float32'


@linear_by_head.also('cpu', _against_one_image)
def _linear_by_head_cpu(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    heads, outputs = weight.shape[1:3]
    y = _convolve(x[0].flatten(1), weight.flatten(0, 2), None if bias is None else bias.flatten(), heads)
    return y.view(1, x.shape[1], heads, outputs)


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """x (N, groups * C), weight (groups * K, C) -> (N, groups * K)."""
    # (1, groups * C, 1, N), channels last; only these views keep it so forward and, for the gradient, backward
    rows = x.unsqueeze(0).transpose(1, 2).unsqueeze(2)
    y = F.conv2d(rows, weight[:, :, None, None], bias, groups=groups)
    return y.squeeze(2).transpose(1, 2).squeeze(0)
