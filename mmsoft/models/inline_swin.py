"""InLine-Swin: the pyramid of Swin, in which InLine layers see the whole map and the others windows.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Liu et al., "Swin Transformer", ICCV 2021.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PatchMerging, PreNormBlock, WindowAttention
from mmsoft.ops.checks import whole

from .classifier import Classifier
from .inline_archs import SWIN_ARCHS, InLineArch
from .inline_pyramid import InLinePyramid


class InLineSwin(InLinePyramid):
    """The backbone; options are those of :class:`InLinePyramid` and:

    Args:
        window_size: Side of the windows of softmax layers, every second of which is shifted.
    """

    archs = SWIN_ARCHS
    inline_stages = 3
    mixed = True

    def __init__(self, arch: str | Mapping | InLineArch = 'tiny', *, window_size: int = 7, **options: Any) -> None:
        self.window_size = whole('window_size', window_size)
        super().__init__(arch, **options)
        if any(2 * small != large for small, large in zip(self.arch.dims[:3], self.arch.dims[1:], strict=True)):
            raise ValueError(f'arch dims must double from stage to stage, as patch merging does; got {self.arch.dims}')

    def _embed(self, stage: int) -> nn.Module:
        dims = self.arch.dims
        return PatchMerging(dims[stage - 1]) if stage else PatchEmbed(self.in_channels, dims[0], 4, 4)

    def _block(self, stage: int, index: int, drop_path: float) -> nn.Module:
        dim, heads = self.arch.dims[stage], self.arch.heads[stage]
        if self._is_inline(stage, index):
            attn = InLineAttention(dim, heads, self.kernel)
        else:
            attn = WindowAttention(dim, heads, self.window_size, shifted=index % 2 == 1)
        return PreNormBlock(dim, attn, Mlp(dim, 4 * dim), drop_path, eps=1e-5)


class InLineSwinClassifier(Classifier, InLineSwin):
    """Images to logits through the mean of the last stage's normalised tokens; options also of :class:`Classifier`."""
