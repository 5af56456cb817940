"""InLine-Swin: the pyramid of Swin, in which InLine layers see the whole map and the others windows.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Liu et al., "Swin Transformer", ICCV 2021.
"""

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PatchMerging, PreNormBlock, WindowAttention
from mmsoft.ops.checks import whole
from mmsoft.weights.shapes import STAGES

from .classifier import Classifier
from .family import Family, Weights
from .inline_archs import InLineArch, doubling
from .inline_pyramid import InLinePyramid, timm_cfg
from .inline_weights import InLineNames, read_arch, read_heads

__all__ = ['SWIN_ARCHS', 'InLineSwin', 'InLineSwinClassifier']

SWIN_ARCHS = {
    'tiny': doubling(96, 3, (2, 2, 6, 2), (2, 2, 6, 0)),
    'small': doubling(96, 3, (2, 2, 18, 2), (2, 2, 0, 0)),
    'base': doubling(128, 4, (2, 2, 18, 2), (2, 2, 2, 0)),
}


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
        return PreNormBlock(dim, attn, Mlp(dim, 4 * dim, 'none', self.recompute), drop_path, eps=1e-5)


class InLineSwinClassifier(Classifier, InLineSwin):
    """Images to logits through the mean of the last stage's normalised tokens; options also of :class:`Classifier`."""


_NAMES = InLineNames(
    {
        'patch_embed': 'stages.0.embed',
        **{f'layers.{i}.downsample': f'stages.{i + 1}.embed' for i in range(3)},
        'layers.*.blocks.*.attn.residual': 'stages.*.blocks.*.attn.predictor',
        'layers.*.blocks': 'stages.*.blocks',
    },
    stacked=True,
)


def _options(weights: Weights) -> dict[str, Any]:
    heads, options = [], {}
    for stage in STAGES:
        tables = [weights[name] for name in weights if _is_bias_table(name, stage)]  # ((2 window - 1)^2, heads)
        if tables:
            options['window_size'] = (math.isqrt(tables[0].shape[0]) + 1) // 2
        heads.append(tables[0].shape[1] if tables else read_heads(weights, f'stages.{stage}.blocks.0.attn.predictor'))
    in_channels = weights['stages.0.embed.proj.weight'].shape[1]
    return dict(arch=read_arch(weights, heads), in_channels=in_channels, **options)


def _is_bias_table(name: str, stage: int) -> bool:
    return name.startswith(f'stages.{stage}.') and name.endswith('relative_position_bias_table')


FAMILY = Family(
    title='InLine-Swin',
    backbone=InLineSwin,
    classifier=InLineSwinClassifier,
    archs=SWIN_ARCHS,
    ours=('stages.0.embed.norm.weight', 'stages.0.blocks.0.attn.proj.weight'),
    not_ours=('stages.0.position.table', 'stages.0.blocks.0.attn.branches.0.lepe.weight'),
    options=_options,
    unseen=dict(kernel='identity'),
    published=('patch_embed.proj.weight', 'layers.0.blocks.0.attn.qkv.weight'),
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
    leaves=(PatchMerging,),
)
