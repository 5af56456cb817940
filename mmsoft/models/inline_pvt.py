"""InLine-PVT: the pyramid of PVT with InLine attention in every layer, without spatial reduction.

Han et al., "Bridging the Divide: Reconsidering Softmax and Linear Attention", NeurIPS 2024;
Wang et al., "Pyramid Vision Transformer", ICCV 2021.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from mmsoft.layers import InLineAttention, Mlp, PatchEmbed, PositionTable, PreNormBlock, embedded_size
from mmsoft.weights.shapes import STAGES, image_size

from .archs import STRIDES, check_stages
from .classifier import Classifier
from .family import Family, Weights
from .inline_archs import InLineArch, all_inline
from .inline_pyramid import InLinePyramid, timm_cfg
from .inline_weights import InLineNames, read_arch, read_heads

__all__ = ['PVT_ARCHS', 'InLinePVT', 'InLinePVTClassifier']

PVT_ARCHS = {
    name: all_inline((64, 128, 320, 512), (2, 4, 10, 16), depths)
    for name, depths in dict(tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3), large=(3, 8, 27, 3)).items()
}


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
        mlp = Mlp(dim, self.mlp_ratios[stage] * dim, 'none', self.recompute)
        return PreNormBlock(dim, attn, mlp, drop_path, eps=1e-6)

    def _norm(self) -> nn.Module:
        return nn.Identity()

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        return x


class InLinePVTClassifier(Classifier, InLinePVT):
    """Images to logits through the mean of the last stage's tokens; options also of :class:`Classifier`."""


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


def _options(weights: Weights) -> dict[str, Any]:
    hidden = [weights[f'stages.{i}.blocks.0.mlp.fc1.weight'].shape for i in STAGES]  # (ratio * C, C)
    return dict(
        arch=read_arch(weights, [read_heads(weights, f'stages.{i}.blocks.0.attn.predictor') for i in STAGES]),
        in_channels=weights['stages.0.embed.proj.weight'].shape[1],
        img_size=image_size(weights),
        mlp_ratios=tuple(rows // columns for rows, columns in hidden),
    )


FAMILY = Family(
    title='InLine-PVT',
    backbone=InLinePVT,
    classifier=InLinePVTClassifier,
    archs=PVT_ARCHS,
    ours=('stages.0.embed.proj.weight', 'stages.0.position.table'),
    options=_options,
    unseen=dict(kernel='identity'),
    published=('patch_embed1.proj.weight', 'pos_embed1', 'block1.0.attn.residual.0.weight'),
    to_ours=_NAMES.to_ours,
    to_published=_NAMES.to_published,
    timm_cfg=timm_cfg,
)
