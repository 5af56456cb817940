"""What the operators share: the type that they compute in, and outputs that mmcv allocates."""

import torch
from torch import Tensor

REMEDY = (
    'needs mmcv with its compiled operators, and this mmcv has none; mmsoft.mmcv_ops replaces those that configs of '
    'mmdet and mmseg use. Build mmcv with MMCV_WITH_OPS=1 for the torch that is here, as "A compiled mmcv" in '
    "mmsoft's docs/installation.md shows for your OpenMMLab line."
)
CHUNK = 2**24  # values of an intermediate that exist at once


def wide(x: Tensor) -> Tensor:
    """float32 for half precision, which torchvision's kernels lack on CPUs and sum up in on GPUs."""
    return x if x.dtype == torch.float64 else x.float()


def fill(output: Tensor, result: Tensor) -> None:
    """Give mmcv's ``output``, which holds nothing yet, the memory of ``result``; copies where types differ."""
    if output.dtype == result.dtype and output.shape == result.shape:
        output.set_(result.detach().contiguous())
    else:
        output.copy_(result)
