"""What the operators share: the type that they compute in, and outputs that mmcv allocates."""

import torch
from torch import Tensor

CHUNK = 2**24  # values of an intermediate that exist at once


def wide(x: Tensor) -> Tensor:
    """float32 for half precision, which torchvision's kernels lack on CPUs and sum up in on GPUs."""
    return x if x.dtype == torch.float64 else x.float()


def fill(output: Tensor, result: Tensor) -> None:
    """Give mmcv's ``output``, whose zeros were never touched, the memory of ``result``; copies where types differ."""
    if output.dtype == result.dtype and output.shape == result.shape:
        output.set_(result.detach().contiguous())
    else:
        output.copy_(result.view_as(output))
