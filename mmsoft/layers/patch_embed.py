"""Patch embeddings: how a stage reduces the map before its layers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.dispatch import is_graph as is_compiling

from .hooks import has_hooks

# On smaller maps it costs more to scale the weights than the output.
FOLDED_PIXELS = 4096


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
        if x.device.type != 'cpu' or is_compiling():
            return super().forward(x)
        if self[0].weight.numel() > x.numel():
            # torch would bring the weights to the layout of the map, at more than the convolution's cost
            x = x.contiguous()
        folds = x.shape[-2] * x.shape[-1] > FOLDED_PIXELS and self._folds()
        return self._folded(x) if folds else super().forward(x)

    def _folds(self) -> bool:
        """Whether this is what was built, a fixed map: others may have put in, or hung on, something else."""
        conv, norm, activation = self
        return (
            (type(conv), type(norm), type(activation)) == (nn.Conv2d, nn.BatchNorm2d, nn.ReLU)
            and not norm.training
            and all(part is not None for part in (conv.bias, norm.weight, norm.running_var))
            and conv.weight.dtype == torch.float32
            and not has_hooks(self)
        )

    def _folded(self, x: Tensor) -> Tensor:
        """In evaluation BatchNorm is a scale and a shift, which the convolution takes in: one pass less."""
        conv, norm = self[0], self[1]
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        weight = conv.weight * scale.view(-1, 1, 1, 1)
        bias = norm.bias + (conv.bias - norm.running_mean) * scale
        return F.conv2d(x, weight, bias, conv.stride, conv.padding).relu_()


class PatchEmbed(nn.Module):
    """Convolution, LayerNorm over channels (or none): ceil(size / stride) patches, which overlap if kernel > stride."""

    def __init__(self, in_channels: int, dim: int, kernel: int, stride: int, norm: bool = True) -> None:
        super().__init__()
        padding = (kernel - stride + 1) // 2  # a patch reaches as far beyond its tile on either side
        self.proj = nn.Conv2d(in_channels, dim, kernel, stride, padding)
        self.norm = nn.LayerNorm(dim, eps=1e-5) if norm else nn.Identity()
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
