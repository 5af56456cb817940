"""Products of many tokens with few weights, by the fastest public road of each device."""

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import is_compiling

# On CPUs torch sends float32 products to MKL, which leaves half of some processors' vector units idle; its
# convolutions go to oneDNN (with two threads or more), which does not. A linear map of tokens is a 1 x 1 convolution.
CONVOLVE = torch.backends.mkldnn.is_available()


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W' + b``, as :func:`torch.nn.functional.linear`: x (..., C), weight (K, C) -> (..., K)."""
    if not _convolves(x):
        return F.linear(x, weight, bias)
    y = _convolve(x.reshape(-1, x.shape[-1]), weight, bias, 1)
    return y.view(x.shape[:-1] + weight.shape[:1])


def linear_by_head(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear map for every image and head: x (B, N, h, d), weight (B, h, k, d), bias (B, h, k) -> (B, N, h, k)."""
    if x.shape[0] == 1 and x.dtype == torch.float32 and _convolves(x):
        heads, outputs = weight.shape[1:3]
        y = _convolve(x[0].flatten(1), weight.flatten(0, 2), None if bias is None else bias.flatten(), heads)
        return y.view(1, x.shape[1], heads, outputs)
    y = torch.matmul(x.transpose(1, 2), weight.transpose(-1, -2)).transpose(1, 2)
    return y if bias is None else y + bias.unsqueeze(1)


def _convolves(x: Tensor) -> bool:
    """Whether oneDNN would do the convolution: it has no float64."""
    if not CONVOLVE or x.device.type != 'cpu' or is_compiling():
        return False
    return x.dtype != torch.float64 and x.numel() > 0


def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> Tensor:
    """x (N, groups * C), weight (groups * K, C) -> (N, groups * K)."""
    # (1, groups * C, 1, N), channels last; only these views keep it so forward and, for the gradient, backward
    rows = x.unsqueeze(0).transpose(1, 2).unsqueeze(2)
    y = F.conv2d(rows, weight[:, :, None, None], bias, groups=groups)
    return y.squeeze(2).transpose(1, 2).squeeze(0)
