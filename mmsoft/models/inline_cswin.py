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
from mmsoft.weights.shapes import STAGES

from .archs import MAX_KEYS, STRIDES
from .classifier import Classifier
from .family import Family, Weights
from .inline_archs import InLineArch, doubling
from .inline_pyramid import InLinePyramid, timm_cfg
from .inline_weights import InLineNames, read_arch, read_heads

__all__ = ['CSWIN_ARCHS', 'InLineCSwin', 'InLineCSwinClassifier']

CSWIN_ARCHS = {
    'tiny': doubling(64, 2, (2, 4, 18, 1), (2, 4, 0, 0)),
    'small': doubling(64, 2, (3, 6, 29, 2), (3, 6, 0, 0)),
    'base': doubling(96, 4, (3, 6, 29, 2), (3, 6, 0, 0)),
}


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
        mlp = Mlp(dim, 4 * dim, 'none', self.recompute)
        return CSwinBlock(dim, self._attention(stage, index), mlp, drop_path, eps=1e-5)

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


_NAMES = InLineNames(
    {
        'stage1_conv_embed.0': 'stages.0.embed.proj',
        'stage1_conv_embed.2': 'stages.0.embed.norm',
        **{f'merge{i}.conv': f'stages.{i}.embed.proj' for i in range(1, 4)},
        **{f'merge{i}.norm': f'stages.{i}.embed.norm' for i in range(1, 4)},
        **{
            theirs: ours
            for i in range(4)
            for theirs, ours in {
                f'stage{i + 1}.*.attns.*.get_v': f'stages.{i}.blocks.*.attn.branches.*.lepe',
                f'stage{i + 1}.*.attns.*.residual': f'stages.{i}.blocks.*.attn.branches.*.predictor',
                f'stage{i + 1}.*.qkv': f'stages.{i}.blocks.*.attn.qkv',
                f'stage{i + 1}.*.proj': f'stages.{i}.blocks.*.attn.proj',
                f'stage{i + 1}': f'stages.{i}.blocks',
            }.items()
        },
    }
)


def _options(weights: Weights) -> dict[str, Any]:
    """Softmax blocks do not show their heads: twice those of the stage before; nor does anything show their split."""
    heads = []
    for stage in STAGES:
        predictor = f'stages.{stage}.blocks.0.attn.branches.0.predictor'
        doubled = heads and f'{predictor}.0.weight' not in weights
        heads.append(2 * heads[-1] if doubled else read_heads(weights, predictor))
    return dict(arch=read_arch(weights, heads), in_channels=weights['stages.0.embed.proj.weight'].shape[1])


FAMILY = Family(
    title='InLine-CSwin',
    backbone=InLineCSwin,
    classifier=InLineCSwinClassifier,
    archs=CSWIN_ARCHS,
    ours=('stages.0.embed.proj.weight', 'stages.0.blocks.0.attn.branches.0.lepe.weight'),
    options=_options,
    unseen=dict(kernel='identity', window_size=7),
    published=('stage1_conv_embed.0.weight', 'stage1.0.qkv.weight'),
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
    leaves=(CSwinBlock,),
)
