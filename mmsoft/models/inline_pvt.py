"""InLine-PVT: the pyramid of PVT with InLine attention in every layer, without spatial reduction.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Wang et al., "Pyramid Vision Transformer", ICCV 2021.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PositionTable, PreNormBlock, embedded_size
from mmsoft.layers.inline_attention import KERNELS
from mmsoft.ops.checks import choose, positive
from mmsoft.weights.shapes import STAGES, Weights, image_size

from .archs import STRIDES, check_stages
from .family import Family
from .inline_archs import InLineArch, all_inline, resolve_inline_arch
from .inline_weights import PAGE, InLineNames, read_arch, read_heads, timm_cfg
from .options import PyramidOptions
from .pyramid import Pyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['PVT_ARCHS', 'InLinePVT', 'InLinePVTClassifier']

PVT_ARCHS = {
    name: all_inline((64, 128, 320, 512), (2, 4, 10, 16), depths)
    for name, depths in dict(tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3), large=(3, 8, 27, 3)).items()
}


class InLinePVTOptions(PyramidOptions, total=False):
    """Of the backbone."""

    kernel: str
    mlp_ratios: Sequence[int]
    embed_eps: float


class InLinePVT(Pyramid):
    """The backbone; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``PVT_ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        mlp_ratios: Hidden width of the MLPs over the stage's width.
        embed_eps: What the norms of the patch embeddings add to the variance; mmdet's PVT has 1e-6.
    """

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        kernel: str = 'identity',
        mlp_ratios: Sequence[int] = (8, 8, 4, 4),
        embed_eps: float = 1e-5,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        arch = resolve_inline_arch(arch, PVT_ARCHS, stages=4, mixed=False)
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        check_stages('mlp_ratios', mlp_ratios, len(STRIDES))
        self.arch, self.kernel, self.mlp_ratios = arch, choose('kernel', kernel, KERNELS), tuple(mlp_ratios)
        self.embed_eps = positive('embed_eps', embed_eps)
        self.build(self._stage)

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dim, heads, hidden = self.arch.dims[index], self.arch.heads[index], self.mlp_ratios[index]
        blocks = [
            PreNormBlock(
                dim,
                InLineAttention(dim, heads, self.kernel),
                Mlp(dim, hidden * dim, 'none', self.recompute),
                rate,
                eps=1e-6,
            )
            for rate in drop_paths
        ]
        stride = 2 if index else 4
        embed = PatchEmbed((self.in_channels, *self.arch.dims)[index], dim, stride, stride, eps=self.embed_eps)
        return Stage(embed, PositionTable(embedded_size(self.img_size, STRIDES[index]), dim), blocks, self.with_cp)


class InLinePVTClassifier(InLinePVT):
    """Images to logits through the mean of the last stage's tokens; options are the backbone's and:

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
        **options: 'Unpack[InLinePVTOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)


_NAMES = InLineNames(
    {
        theirs: ours
        for i in range(4)
        for theirs, ours in {
            f'patch_embed{i + 1}': f'stages.{i}.embed',
            f'pos_embed{i + 1}': f'stages.{i}.position.table',
            f'block{i + 1}.*.attn.residual': f'stages.{i}.blocks.*.attn.predictor',
            f'block{i + 1}': f'stages.{i}.blocks',
        }.items()
    }
)


def _img_size(weights: Weights) -> tuple[int, int]:
    return image_size(weights, 'stages.0.position.table', STRIDES[0])


def _options(weights: Weights) -> dict[str, Any]:
    hidden = [weights[f'stages.{i}.blocks.0.mlp.fc1.weight'].shape for i in STAGES]  # (ratio * C, C)
    return dict(
        arch=read_arch(weights, [read_heads(weights, f'stages.{i}.blocks.0.attn.predictor') for i in STAGES]),
        in_channels=weights['stages.0.embed.proj.weight'].shape[1],
        img_size=_img_size(weights),
        mlp_ratios=tuple(rows // columns for rows, columns in hidden),
    )


FAMILY = Family(
    title='InLine-PVT',
    backbone=InLinePVT,
    classifier=InLinePVTClassifier,
    archs=PVT_ARCHS,
    ours=('stages.0.embed.proj.weight', 'stages.0.position.table'),
    options=_options,
    img_size=_img_size,
    unseen=dict(kernel='identity', embed_eps=1e-5),
    published=('patch_embed1.proj.weight', 'pos_embed1', 'block1.0.attn.residual.0.weight'),
    page=PAGE,
    fits='PVT fits inline_pvt_* of its size',
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
)
