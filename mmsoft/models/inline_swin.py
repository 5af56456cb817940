"""InLine-Swin: the pyramid of Swin, in which InLine layers see the whole map and the others windows.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Liu et al., "Swin Transformer", ICCV 2021.
"""

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PatchMerging, PreNormBlock, WindowAttention
from mmsoft.layers.inline_attention import KERNELS
from mmsoft.layers.swin import SHIFTS
from mmsoft.ops.checks import choose, flag, whole
from mmsoft.weights.shapes import STAGES, Weights

from .archs import STRIDES
from .family import Family
from .inline_archs import InLineArch, doubling, resolve_inline_arch
from .inline_weights import PAGE, InLineNames, read_arch, read_heads, timm_cfg
from .options import PyramidOptions
from .pyramid import Pyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['SWIN_ARCHS', 'InLineSwin', 'InLineSwinClassifier']

SWIN_ARCHS = {
    'tiny': doubling(96, 3, (2, 2, 6, 2), (2, 2, 6, 0)),
    'small': doubling(96, 3, (2, 2, 18, 2), (2, 2, 0, 0)),
    'base': doubling(128, 4, (2, 2, 18, 2), (2, 2, 2, 0)),
}


class InLineSwinOptions(PyramidOptions, total=False):
    """Of the backbone."""

    kernel: str
    window_size: int
    shift: str
    output_norms: bool


class InLineSwin(Pyramid):
    """The backbone; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``SWIN_ARCHS`` or ``dict(dims=..., heads=..., depths=...)``, with ``inline=...`` if another
            number of each stage's layers than all of the first 3 is InLine.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        window_size: Side of the windows of softmax layers, every second of which is shifted.
        shift: Which maps are shifted; see :class:`mmsoft.layers.WindowAttention`.
        output_norms: Whether maps of stages 1 to 3 go through norms of their own, as mmdet's and mmseg's Swin has
            them, and not through a norm without parameters.
    """

    norm_all = True

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        kernel: str = 'identity',
        window_size: int = 7,
        shift: str = 'large',
        output_norms: bool = False,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        arch = resolve_inline_arch(arch, SWIN_ARCHS, stages=3, mixed=True)
        if any(2 * small != large for small, large in zip(arch.dims[:3], arch.dims[1:], strict=True)):
            raise ValueError(f'arch dims must double from stage to stage, as patch merging does; got {arch.dims}')
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        self.arch, self.kernel = arch, choose('kernel', kernel, KERNELS)
        self.window_size, self.shift = whole('window_size', window_size), choose('shift', shift, SHIFTS)
        inner = [i for i in self.out_indices if i < len(STRIDES) - 1] if flag('output_norms', output_norms) else []
        self.map_norms = nn.ModuleDict({str(i): nn.LayerNorm(arch.dims[i], eps=1e-5) for i in inner})
        self.build(self._stage, partial(nn.LayerNorm, eps=1e-5))

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dims, blocks = self.arch.dims, [self._block(index, *place) for place in enumerate(drop_paths)]
        embed = PatchMerging(dims[index - 1]) if index else PatchEmbed(self.in_channels, dims[0], 4, 4)
        return Stage(embed, nn.Identity(), blocks, self.with_cp)

    def _block(self, stage: int, index: int, drop_path: float) -> nn.Module:
        dim, heads = self.arch.dims[stage], self.arch.heads[stage]
        if index < self.arch.inline[stage]:
            attn = InLineAttention(dim, heads, self.kernel)
        else:
            attn = WindowAttention(dim, heads, self.window_size, shifted=index % 2 == 1, shift=self.shift)
        return PreNormBlock(dim, attn, Mlp(dim, 4 * dim, recompute=self.recompute), drop_path, eps=1e-5)

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        if str(index) in self.map_norms:
            return self.map_norms[str(index)](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return super()._to_output(x, index)

    def _frozen_modules(self) -> list[nn.Module]:
        norms = [norm for stage, norm in self.map_norms.items() if int(stage) < self.frozen_stages]
        return [*super()._frozen_modules(), *norms]


class InLineSwinClassifier(InLineSwin):
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
        **options: 'Unpack[InLineSwinOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)


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
    if any(name.startswith('map_norms.') for name in weights):
        options['output_norms'] = True
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
    unseen=dict(kernel='identity', shift='large'),
    published=('patch_embed.proj.weight', 'layers.0.blocks.0.attn.qkv.weight'),
    page=PAGE,
    fits='Swin fits inline_swin_* of its size',
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
    leaves=(PatchMerging,),
)
