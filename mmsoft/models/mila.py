"""MILA: a pyramid whose layers mix tokens by linear attention between a depth-wise convolution and a gate, as Mamba's.

Han et al., "Demystify Mamba in Vision: A Linear Attention Perspective", NeurIPS 2024.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmsoft.layers import Linear, MILAAttention, Mlp
from mmsoft.ops import add_convolved, add_residual, lacking, squeezed_convolution, to_map, to_tokens
from mmsoft.ops.checks import flag
from mmsoft.weights.renaming import renamer
from mmsoft.weights.shapes import STAGES, Weights, depths

from .archs import STRIDES, Arch, check_stages, resolve_arch
from .family import Family
from .options import PyramidOptions
from .pyramid import NormedPyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['MILA', 'MILA_ARCHS', 'MILAClassifier']

MILA_ARCHS = {
    'tiny': Arch((64, 128, 256, 512), (2, 4, 8, 16), (2, 4, 8, 4)),
    'small': Arch((64, 128, 256, 512), (2, 4, 8, 16), (3, 6, 21, 6)),
    'base': Arch((96, 192, 384, 768), (3, 6, 12, 24), (3, 6, 21, 6)),
}
HEAD_WIDTH = 32  # of all published models
HIDDEN = 8  # channels within a merging, over those of the stage before


def _unit(in_channels: int, dim: int, kernel: int, stride: int, *, relu: bool = True) -> nn.Sequential:
    conv = nn.Conv2d(in_channels, dim, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(dim), *([nn.ReLU(inplace=True)] if relu else []))


def _filled(x: Tensor, multiple: int) -> Tensor:
    """x (B, C, H, W), zero-padded at the right and bottom to sides that are multiples."""
    return F.pad(x, (0, lacking(x.shape[3], multiple), 0, lacking(x.shape[2], multiple)))


class MILAStem(nn.Module):
    """Images to stride 4: a convolution, a residual of two more, and two that make them wide and narrow again."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        half = dim // 2
        self.conv1 = _unit(in_channels, half, 3, 2)
        self.conv2 = nn.Sequential(_unit(half, half, 3, 1), _unit(half, half, 3, 1, relu=False))
        self.conv3 = nn.Sequential(_unit(half, 4 * dim, 3, 2), _unit(4 * dim, dim, 1, 1, relu=False))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, 3, H, W) -> (B, C, H / 4, W / 4), rounded up."""
        x = self.conv1(_filled(x, 4))
        return self.conv3(x + self.conv2(x))


class MILAMerging(nn.Module):
    """Half the sides and other channels, by way of ``HIDDEN`` times the channels and a depth-wise convolution."""

    def __init__(self, in_channels: int, dim: int) -> None:
        super().__init__()
        hidden = HIDDEN * in_channels
        self.expand = nn.Conv2d(in_channels, hidden, 1)
        self.reduce = nn.Conv2d(hidden, hidden, 3, 2, 1, groups=hidden)
        self.project = nn.Conv2d(hidden, dim, 1)
        self.norm = nn.BatchNorm2d(dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C', H, W) -> (B, C, H / 2, W / 2), rounded up; what an odd map lacks goes through all of it."""
        return self.norm(squeezed_convolution(_filled(x, 2), self.expand, self.reduce, self.project))


class MILABlock(nn.Module):
    """Convolution, gated linear attention, convolution, MLP, each a residual."""

    def __init__(self, dim: int, num_heads: int, drop_path: float, recompute: bool | None) -> None:
        super().__init__()
        self.cpe1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=1e-5)
        self.in_proj = Linear(dim, dim)
        self.act_proj = Linear(dim, dim)
        self.dwc = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.attn = MILAAttention(dim, num_heads)
        self.out_proj = Linear(dim, dim)
        self.cpe2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-5)
        self.mlp = Mlp(dim, 4 * dim, recompute=recompute)
        self.drop_path = StochasticDepth(drop_path, mode='row')

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        x = to_tokens(add_convolved(to_map(x, grid), self.cpe1))
        u = self.norm1(x)
        mixed = self.attn(F.silu(to_tokens(self.dwc(to_map(self.in_proj(u), grid)))), grid)
        x = add_residual(x, self.out_proj(mixed * F.silu(self.act_proj(u))), self.drop_path)
        x = to_tokens(add_convolved(to_map(x, grid), self.cpe2))
        return add_residual(x, self.mlp(self.norm2(x)), self.drop_path)


class MILAOptions(PyramidOptions, total=False):
    """Of the backbone."""

    num_heads: Sequence[int] | None
    norm_eval: bool


class MILA(NormedPyramid):
    """The backbone; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``MILA_ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        num_heads: Heads of the four stages, in place of those of ``arch``: weights do not show them.
        norm_eval: Keep BatchNorm in evaluation mode while training.
    """

    def __init__(
        self,
        arch: str | Mapping | Arch = 'tiny',
        *,
        num_heads: Sequence[int] | None = None,
        norm_eval: bool = False,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        arch = resolve_arch(arch, MILA_ARCHS)
        if num_heads is not None:
            check_stages('num_heads', num_heads, len(STRIDES))
            arch = resolve_arch(arch._asdict() | dict(heads=num_heads), MILA_ARCHS)
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        self.arch, self.norm_eval = arch, flag('norm_eval', norm_eval)
        self.build_with_norms(self._stage)

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dim, heads = self.arch.dims[index], self.arch.heads[index]
        embed = MILAMerging(self.arch.dims[index - 1], dim) if index else MILAStem(self.in_channels, dim)
        blocks = [MILABlock(dim, heads, rate, self.recompute) for rate in drop_paths]
        return Stage(embed, nn.Identity(), blocks, self.with_cp)


class MILAClassifier(MILA):
    """Images to logits through the mean of the last stage's normalised tokens; options are the backbone's and:

    Args:
        num_classes, global_pool, drop_rate: See :meth:`Backbone.add_head`.
    """

    trains_norms = False

    def __init__(
        self,
        arch: str | Mapping | Arch = 'tiny',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: 'Unpack[MILAOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)
        self.head_norm = nn.LayerNorm(self.num_features, eps=1e-5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)

    def _last_stage(self, x: Tensor, output: Tensor | None) -> Tensor:
        y = self.stages[-1](x) if output is None else output
        return self.head_norm(to_tokens(y))

    def _prune_rest(self, norm: bool, head: bool) -> None:
        if head:
            self.head_norm = nn.Identity()
        super()._prune_rest(norm, head)


_STEM = {
    'patch_embed.conv1': 'stages.0.embed.conv1',
    **{f'patch_embed.conv{i}.{j}': f'stages.0.embed.conv{i}.{j}' for i in (2, 3) for j in (0, 1)},
}
_PAIRS = {
    **{f'{theirs}.conv': f'{ours}.0' for theirs, ours in _STEM.items()},
    **{f'{theirs}.norm': f'{ours}.1' for theirs, ours in _STEM.items()},
    **{
        f'layers.{i}.downsample.conv.{part}': f'stages.{i + 1}.embed.{ours}'
        for i in range(3)
        for part, ours in {'0.conv': 'expand', '1.conv': 'reduce', '2.conv': 'project', '2.norm': 'norm'}.items()
    },
    'layers.*.blocks': 'stages.*.blocks',
    'norm': 'head_norm',
    **{f'norm{i}': f'pyramid.levels.{i}' for i in STAGES},
}
_our_name = renamer(_PAIRS.items())
_published_name = renamer((ours, theirs) for theirs, ours in _PAIRS.items())


def _to_ours(weights: Weights) -> dict[str, Tensor]:
    return {_our_name(name): value for name, value in weights.items()}


def _to_published(weights: Weights) -> dict[str, Tensor]:
    return {_published_name(name): value for name, value in weights.items()}


def _options(weights: Weights) -> dict[str, Any]:
    """Heads leave no trace; they are as wide as in all published models, or as divides a stage's channels."""
    dims = tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES)
    heads = tuple(dim // math.gcd(dim, HEAD_WIDTH) for dim in dims)
    in_channels = weights['stages.0.embed.conv1.0.weight'].shape[1]
    return dict(arch=Arch(dims, heads, depths(weights)), in_channels=in_channels)


def _timm_cfg(arch: str) -> dict[str, Any]:
    return dict(first_conv='stages.0.embed.conv1.0', paper_ids='arXiv:2405.16605')  # of the weights no licence is told


FAMILY = Family(
    title='MILA',
    backbone=MILA,
    classifier=MILAClassifier,
    archs=MILA_ARCHS,
    ours=('stages.0.embed.conv1.0.weight', 'stages.0.blocks.0.act_proj.weight'),
    options=_options,
    unseen=dict(num_heads=f'heads of {HEAD_WIDTH} channels'),
    head=('head_norm', 'head'),
    published=('patch_embed.conv1.conv.weight', 'layers.0.blocks.0.attn.qk.weight'),
    to_ours=_to_ours,
    to_published=_to_published,
    timm_cfg=_timm_cfg,
    page='https://github.com/LeapLabTHU/MLLA',
    fits='MLLA_T, S and B fit mila_tiny, small and base',
)
