"""InLine-CSwin: the pyramid of CSwin, in which InLine layers see the whole map and the others cross-shaped windows.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Dong et al., "CSWin Transformer", CVPR 2022.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mmsoft.layers import (
    CrossShapedAttention,
    CSwinBlock,
    GlobalBranch,
    InLineBranch,
    Mlp,
    PatchEmbed,
    StripeBranch,
)
from mmsoft.layers.inline_attention import KERNELS
from mmsoft.ops.checks import choose, whole
from mmsoft.weights.shapes import STAGES, Weights

from .archs import MAX_KEYS, STRIDES
from .family import Family
from .inline_archs import InLineArch, doubling, resolve_inline_arch
from .inline_weights import PAGE, InLineNames, read_arch, read_heads, timm_cfg
from .options import PyramidOptions
from .pyramid import Pyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['CSWIN_ARCHS', 'InLineCSwin', 'InLineCSwinClassifier']

CSWIN_ARCHS = {
    'tiny': doubling(64, 2, (2, 4, 18, 1), (2, 4, 0, 0)),
    'small': doubling(64, 2, (3, 6, 29, 2), (3, 6, 0, 0)),
    'base': doubling(96, 4, (3, 6, 29, 2), (3, 6, 0, 0)),
}


class InLineCSwinOptions(PyramidOptions, total=False):
    """Of the backbone."""

    kernel: str
    window_size: int


class InLineCSwin(Pyramid):
    """The backbone; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``CSWIN_ARCHS`` or ``dict(dims=..., heads=..., depths=...)``, with ``inline=...`` if another
            number of each stage's layers than all of the first 2 is InLine.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        window_size: Width of the stripes that softmax layers see; in the last stage they see the whole map.
    """

    norm_all = True

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        kernel: str = 'identity',
        window_size: int = 7,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        arch = resolve_inline_arch(arch, CSWIN_ARCHS, stages=2, mixed=True)
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        self.arch, self.kernel = arch, choose('kernel', kernel, KERNELS)
        self.window_size = whole('window_size', window_size)
        self.build(self._stage, partial(nn.LayerNorm, eps=1e-5))

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dim, blocks = self.arch.dims[index], []
        for number, rate in enumerate(drop_paths):
            attention, mlp = self._attention(index, number), Mlp(dim, 4 * dim, recompute=self.recompute)
            blocks.append(CSwinBlock(dim, attention, mlp, rate, eps=1e-5))
        embed = PatchEmbed(self.arch.dims[index - 1], dim, 3, 2) if index else PatchEmbed(self.in_channels, dim, 7, 4)
        return Stage(embed, nn.Identity(), blocks, self.with_cp)

    def _attention(self, stage: int, index: int) -> CrossShapedAttention:
        dim, heads = self.arch.dims[stage], self.arch.heads[stage]
        if index < self.arch.inline[stage]:
            return CrossShapedAttention(dim, [InLineBranch(dim, heads, self.kernel)])
        if stage == len(STRIDES) - 1:
            return CrossShapedAttention(dim, [GlobalBranch(dim, heads, MAX_KEYS)])
        if heads % 2:
            raise ValueError(f'arch stage {stage + 1}: heads ({heads}) must be even, half for stripes either way')
        split = self.window_size
        branches = [StripeBranch(dim // 2, heads // 2, split, vertical) for vertical in (True, False)]
        return CrossShapedAttention(dim, branches, split)


class InLineCSwinClassifier(InLineCSwin):
    """Images to logits through the mean of the last stage's normalised tokens; options are the backbone's and:

    Args:
        num_classes, global_pool, drop_rate: See :meth:`Backbone.add_head`.
    """

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: 'Unpack[InLineCSwinOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)


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
    page=PAGE,
    fits='CSwin fits inline_cswin_* of its size',
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
    leaves=(CSwinBlock,),
)
