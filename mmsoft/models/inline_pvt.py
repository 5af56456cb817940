"""InLine-PVT: the pyramid of PVT with InLine attention in every layer, without spatial reduction.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Wang et al., "Pyramid Vision Transformer", ICCV 2021.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PositionTable, PreNormBlock, embedded_size

from .archs import STRIDES, check_stages
from .classifier import Classifier
from .inline_archs import PVT_ARCHS, InLineArch
from .inline_pyramid import InLinePyramid


class InLinePVT(InLinePyramid):
    """The backbone; options are those of :class:`InLinePyramid` and:

    Args:
        mlp_ratios: Hidden width of the MLPs over the stage's width.
    """

    archs = PVT_ARCHS

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        mlp_ratios: Sequence[int] = (8, 8, 4, 4),
        **options: Any,
    ) -> None:
        check_stages('mlp_ratios', mlp_ratios, len(STRIDES))
        self.mlp_ratios = tuple(mlp_ratios)
        super().__init__(arch, **options)

    def _embed(self, stage: int) -> nn.Module:
        dims = (self.in_channels, *self.arch.dims)
        stride = 2 if stage else 4
        return PatchEmbed(dims[stage], dims[stage + 1], stride, stride)

    def _position(self, stage: int) -> nn.Module:
        return PositionTable(embedded_size(self.img_size, STRIDES[stage]), self.arch.dims[stage])

    def _block(self, stage: int, index: int, drop_path: float) -> nn.Module:
        dim = self.arch.dims[stage]
        attn = InLineAttention(dim, self.arch.heads[stage], self.kernel)
        return PreNormBlock(dim, attn, Mlp(dim, self.mlp_ratios[stage] * dim), drop_path, eps=1e-6)

    def _norm(self) -> nn.Module:
        return nn.Identity()

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        return x


class InLinePVTClassifier(Classifier, InLinePVT):
    """Images to logits through the mean of the last stage's tokens; options also of :class:`Classifier`."""
