"""InLine-DeiT: a plain vision transformer with InLine attention; the backbone makes a pyramid of its one map.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Touvron et al., "Training data-efficient image transformers & distillation through attention", ICML 2021.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PositionTable, PreNormBlock, SimplePyramid, embedded_size
from mmsoft.layers.inline_attention import KERNELS
from mmsoft.ops import to_map, to_tokens
from mmsoft.ops.checks import choose
from mmsoft.weights.shapes import Weights, count_layers, image_size

from .archs import STRIDES
from .backbone import Backbone, init_linear
from .family import Family
from .features import OUTPUT_FORMATS, as_format, take_indices
from .inline_archs import InLineArch, all_inline, resolve_inline_arch
from .inline_weights import PAGE, PAPER, InLineNames, read_heads
from .options import CommonOptions
from .stage import run_layer, run_layers, to_channels_last

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['DEIT_ARCHS', 'DEIT_SIZES', 'InLineDeiT', 'InLineDeiTClassifier']

DEIT_ARCHS = {
    'tiny': all_inline((192,), (6,), (12,)),
    'small': all_inline((320,), (10,), (12,)),
    'base': all_inline((384,), (12,), (12,)),
}
DEIT_SIZES = {'tiny': 224, 'small': 288, 'base': 448}  # of the images that they are trained on
PATCH = 16


class InLineDeiTOptions(CommonOptions, total=False):
    """Of the backbone."""

    kernel: str
    img_size: int | tuple[int, int] | None


class PlainTransformer(Backbone):
    """What backbone and classifier share: all layers run at stride 16, with the class token before the others.

    Options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``DEIT_ARCHS`` or ``dict(dims=(C,), heads=(h,), depths=(n,))``.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        img_size: Image size whose grid the position table has, by default that of the arch; other sizes resize it.
        out_indices: Maps of the pyramid that are returned: strides 4, 8, 16, 32 and C / 4, C / 2, C, C channels.
        frozen_stages: -1 freezes nothing, 0 the embedding and positions, k also the first k layers.
    """

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        kernel: str = 'identity',
        img_size: int | tuple[int, int] | None = None,
        **options: 'Unpack[CommonOptions]',
    ) -> None:
        if img_size is None:
            img_size = DEIT_SIZES.get(arch, 224) if isinstance(arch, str) else 224
        arch = resolve_inline_arch(arch, DEIT_ARCHS, stages=1, mixed=False)
        (dim,), (heads,), (depth,) = arch.dims, arch.heads, arch.depths
        if dim % 4:
            raise ValueError(f'arch dims must be a multiple of 4, for the pyramid; got {dim}')
        dims = (dim // 4, dim // 2, dim, dim)
        super().__init__(dims, STRIDES, arch.depths, depth, img_size=img_size, **options)
        self.arch, self.kernel = arch, choose('kernel', kernel, KERNELS)
        self.embed = PatchEmbed(self.in_channels, dim, PATCH, PATCH, norm=False)
        self.position = PositionTable(embedded_size(self.img_size, PATCH), dim)
        self.cls_token = nn.Parameter(torch.empty(1, 1, dim))
        self.cls_position = nn.Parameter(torch.empty(1, 1, dim))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.cls_position, std=0.02)
        self.blocks = nn.ModuleList(
            PreNormBlock(
                dim, InLineAttention(dim, heads, kernel), Mlp(dim, 4 * dim, 'none', self.recompute), rate, eps=1e-6
            )
            for rate in self.drop_paths[0]
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)

    def _embedded(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images, channels last -> tokens (B, 1 + H' * W', dim), the class token first, and their grid."""
        x = self.position(self.embed(x))
        token = (self.cls_token + self.cls_position).expand(x.shape[0], -1, -1)
        return torch.cat((token, to_tokens(x)), 1), (x.shape[2], x.shape[3])

    def _tokens(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Images, channels last -> normalised tokens (B, 1 + H' * W', dim) of the last layer, and their grid."""
        tokens, grid = self._embedded(x)
        tokens = run_layers(self.blocks, tokens, grid, self.with_cp)
        return self.norm(tokens), grid

    def _features(self, x: Tensor) -> Tensor:
        return self._tokens(x)[0]

    def train(self, mode: bool = True):
        """As any backbone; the class token freezes with the embedding."""
        super().train(mode)
        if self.frozen_stages >= 0:
            self.cls_token.requires_grad_(False)
            self.cls_position.requires_grad_(False)
        return self

    def _frozen_modules(self) -> list[nn.Module]:
        if self.frozen_stages < 0:
            return []
        all_layers = [self.norm] if self.frozen_stages == len(self.blocks) else []
        return [self.embed, self.position, *self.blocks[: self.frozen_stages], *all_layers]

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that order parameters by depth, for layer-wise learning rates."""
        blocks = [(r'^blocks\.(\d+)', None), (r'^norm', (99999,))]
        return dict(stem=r'^cls_token|^cls_position|^embed|^position', blocks=blocks)


class InLineDeiT(PlainTransformer):
    """The backbone: a simple pyramid makes maps of strides 4 to 32 of the last layer's."""

    def __init__(self, arch: str | Mapping | InLineArch = 'tiny', **options: 'Unpack[InLineDeiTOptions]') -> None:
        super().__init__(arch, **options)
        self.pyramid = SimplePyramid(self.arch.dims[0], self.out_indices)
        self.apply(init_linear)
        self.train()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) -> chosen maps (B, channels, H / stride, W / stride), rounded up; contiguous."""
        height, width = x.shape[-2:]
        tokens, grid = self._tokens(to_channels_last(x, self.in_channels))
        maps = self.pyramid(to_map(tokens[:, 1:], grid))
        sizes = [embedded_size((height, width), stride) for stride in self.strides]
        # the grid may reach beyond the image, at the right and bottom
        return tuple(m[:, :, : size[0], : size[1]].contiguous() for m, size in zip(maps, sizes, strict=True))


class InLineDeiTClassifier(PlainTransformer):
    """Images to logits through the class token; there is no pyramid. Options are the backbone's and:

    Args:
        num_classes, global_pool, drop_rate: See :meth:`Backbone.add_head`.
    """

    pools = ('token', 'avg', '')
    num_prefix_tokens = 1

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: 'Unpack[InLineDeiTOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.apply(init_linear)
        self.add_head(num_classes, global_pool, drop_rate)
        self.train()

    def _feature_info(self) -> list[dict[str, Any]]:
        return [dict(num_chs=self.num_features, reduction=PATCH, module=f'blocks.{i}') for i in range(self.freezable)]

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Maps of layers, all of stride 16, as timm asks for them; class tokens left out.

        ``indices``: layer numbers, the last so many, or all; ``norm``: apply the final norm to every
        map; ``stop_early``: leave layers after the last map out. Unless ``intermediates_only``, also what
        forward_features gives.
        """
        choose('output_fmt', output_fmt, OUTPUT_FORMATS)
        wanted = take_indices(indices, len(self.blocks), 'layer')
        x, grid = self._embedded(to_channels_last(x, self.in_channels))
        maps = []
        for index, block in enumerate(self.blocks):
            if index > wanted[-1] and (stop_early or intermediates_only):
                break
            x = run_layer(block, x, grid, self.with_cp)
            if index in wanted:
                tokens = x[:, 1:]
                maps.append(as_format(to_map(self.norm(tokens) if norm else tokens, grid), output_fmt))
        return maps if intermediates_only else (self.norm(x), maps)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the maps of these layers do not need; their numbers."""
        wanted = take_indices(indices, len(self.blocks), 'layer')
        self.blocks = self.blocks[: wanted[-1] + 1]
        self._prune_rest(prune_norm, prune_head)
        return wanted

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute every layer in backward, as ``with_cp``."""
        self.with_cp = enable


_NAMES = InLineNames(
    {
        'patch_embed': 'embed',
        'pos_embed': 'position.table',
        'blocks.*.attn.residual': 'blocks.*.attn.predictor',
    },
    stacked=True,
)


def _img_size(weights: Weights) -> tuple[int, int]:
    return image_size(weights, 'position.table', PATCH)


def _options(weights: Weights) -> dict[str, Any]:
    dim, in_channels, *_ = weights['embed.proj.weight'].shape
    depth = count_layers(weights, 'blocks')
    return dict(
        arch=InLineArch((dim,), (read_heads(weights, 'blocks.0.attn.predictor'),), (depth,), (depth,)),
        in_channels=in_channels,
        img_size=_img_size(weights),
    )


def _timm_cfg(arch: str) -> dict[str, Any]:
    side = DEIT_SIZES[arch]
    sizes = dict(input_size=(3, side, side), pool_size=(side // PATCH, side // PATCH))
    return dict(first_conv='embed.proj', license='apache-2.0', paper_ids=PAPER, **sizes)


FAMILY = Family(
    title='InLine-DeiT',
    backbone=InLineDeiT,
    classifier=InLineDeiTClassifier,
    archs=DEIT_ARCHS,
    ours=('embed.proj.weight', 'position.table', 'blocks.0.attn.predictor.0.weight'),
    options=_options,
    img_size=_img_size,
    unseen=dict(kernel='identity'),
    published=('patch_embed.proj.weight', 'pos_embed', 'blocks.0.attn.qkv.weight', 'blocks.0.attn.residual.0.weight'),
    page=PAGE,
    fits='DeiT fits inline_deit_* of its size',
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=_timm_cfg,
    maps=3,  # of the last layers, at one stride
)
