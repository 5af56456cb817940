"""InLine-CSwin: the pyramid of CSwin, in which InLine layers see the whole map and the others cross-shaped windows.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Dong et al., "CSWin Transformer", CVPR 2022.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from mmsoft.layers import (
    CrossShapedAttention,
    CSwinBlock,
    GlobalBranch,
    InLineBranch,
    Mlp,
    PatchEmbed,
    StripeBranch,
)
from mmsoft.ops.checks import whole

from .archs import MAX_KEYS, STRIDES
from .classifier import Classifier
from .inline_archs import CSWIN_ARCHS, InLineArch
from .inline_pyramid import InLinePyramid


class InLineCSwin(InLinePyramid):
    """The backbone; options are those of :class:`InLinePyramid` and:

    Args:
        window_size: Width of the stripes that softmax layers see; in the last stage they see the whole map.
    """

    archs = CSWIN_ARCHS
    inline_stages = 2
    mixed = True

    def __init__(self, arch: str | Mapping | InLineArch = 'tiny', *, window_size: int = 7, **options: Any) -> None:
        self.window_size = whole('window_size', window_size)
        super().__init__(arch, **options)

    def _embed(self, stage: int) -> nn.Module:
        dims = self.arch.dims
        if stage:
            return PatchEmbed(dims[stage - 1], dims[stage], 3, 2)
        return PatchEmbed(self.in_channels, dims[0], 7, 4)

    def _block(self, stage: int, index: int, drop_path: float) -> nn.Module:
        dim = self.arch.dims[stage]
        return CSwinBlock(dim, self._attention(stage, index), Mlp(dim, 4 * dim), drop_path, eps=1e-5)

    def _attention(self, stage: int, index: int) -> CrossShapedAttention:
        dim, heads = self.arch.dims[stage], self.arch.heads[stage]
        if self._is_inline(stage, index):
            return CrossShapedAttention(dim, [InLineBranch(dim, heads, self.kernel)])
        if stage == len(STRIDES) - 1:
            return CrossShapedAttention(dim, [GlobalBranch(dim, heads, MAX_KEYS)])
        if heads % 2:
            raise ValueError(f'arch stage {stage + 1}: heads ({heads}) must be even, half for stripes either way')
        split = self.window_size
        branches = [StripeBranch(dim // 2, heads // 2, split, vertical) for vertical in (True, False)]
        return CrossShapedAttention(dim, branches, split)


class InLineCSwinClassifier(Classifier, InLineCSwin):
    """Images to logits through the mean of the last stage's normalised tokens; options also of :class:`Classifier`."""
