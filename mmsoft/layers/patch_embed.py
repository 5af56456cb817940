"""Patch embeddings: how a stage reduces the map before its layers."""

import math

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import conv_unit


class ConvUnit(nn.Sequential):
    """Convolution, BatchNorm, ReLU.

    A 3 x 3 kernel overlaps and is padded by 1; a kernel equal to its stride tiles the map, which is
    then padded at the right and bottom. Both give ceil(size / stride) and see every pixel.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, overlap: bool) -> None:
        kernel, padding = (3, 1) if overlap else (stride, 0)
        conv = nn.Conv2d(in_channels, out_channels, kernel, stride, padding)
        super().__init__(conv, nn.BatchNorm2d(out_channels), nn.ReLU(inplace=True))
        # zeros at the right and bottom that complete a last tile, and are left over where it is complete
        self.margin = 0 if overlap else stride - 1

    def forward(self, x: Tensor) -> Tensor:
        if self.margin:
            x = F.pad(x, (0, self.margin, 0, self.margin))
        return conv_unit(x, self)


class PatchEmbed(nn.Module):
    """Convolution, LayerNorm over channels (or none): ceil(size / stride) patches, which overlap if kernel > stride."""

    def __init__(
        self, in_channels: int, dim: int, kernel: int, stride: int, norm: bool = True, eps: float = 1e-5
    ) -> None:
        super().__init__()
        padding = (kernel - stride + 1) // 2  # a patch reaches as far beyond its tile on either side
        self.proj = nn.Conv2d(in_channels, dim, kernel, stride, padding)
        self.norm = nn.LayerNorm(dim, eps=eps) if norm else nn.Identity()
        # further zeros at the right and bottom that complete a last patch, and are left over where it is complete
        self.margin = kernel - 1 - 2 * padding

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C', H, W) -> (B, C, H / stride, W / stride), rounded up."""
        if self.margin:
            x = F.pad(x, (0, self.margin, 0, self.margin))
        x = self.proj(x)
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


STEM_WIDTH = 32


def stem(in_channels: int, dim: int, overlap: bool, stride: int = 4) -> nn.Sequential:
    """Image to a stride of 4 or another power of two: overlapping units (2, 1, 2, 2, ...), or one tiling."""
    if not overlap:
        return nn.Sequential(ConvUnit(in_channels, dim, stride, overlap=False))
    return nn.Sequential(
        ConvUnit(in_channels, STEM_WIDTH, 2, overlap=True),
        ConvUnit(STEM_WIDTH, STEM_WIDTH, 1, overlap=True),
        ConvUnit(STEM_WIDTH, dim, 2, overlap=True),
        *(ConvUnit(dim, dim, 2, overlap=True) for _ in range(int(math.log2(stride)) - 2)),
    )


def embedded_size(size: tuple[int, int], stride: int) -> tuple[int, int]:
    """Grid that embeddings of a total stride give an image of this size, a power of two at a time."""
    return math.ceil(size[0] / stride), math.ceil(size[1] / stride)
