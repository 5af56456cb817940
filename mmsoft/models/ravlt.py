"""RAVLT: a pyramid of convolutions and rank-augmented linear attention (RALA), softmax attention in its last stages.

Fan et al., "Breaking the Low-Rank Dilemma of Linear Attention", CVPR 2025.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmsoft.layers import Mlp, RALAAttention
from mmsoft.ops import add_convolved, add_norm, add_residual, map_wise, position_frequencies, to_map, to_tokens
from mmsoft.ops.checks import flag, whole
from mmsoft.weights.renaming import renamer
from mmsoft.weights.shapes import STAGES, Weights, depths

from .archs import STRIDES, resolve_arch
from .backbone import init_linear
from .family import Family
from .options import PyramidOptions
from .pyramid import NormedPyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['RAVLT', 'RAVLT_ARCHS', 'RAVLTArch', 'RAVLTClassifier']

LINEAR_STAGES = 2  # the first ones, whose attention is RALA as published
EPS = 1e-6


class RAVLTArch(NamedTuple):
    """As ``Arch``, and the width of what the classifier's head sees."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    depths: tuple[int, ...]
    projection: int = 1024


RAVLT_ARCHS = {
    'tiny': RAVLTArch((64, 128, 256, 512), (1, 2, 4, 8), (2, 2, 6, 2)),
    'small': RAVLTArch((64, 128, 320, 512), (1, 2, 5, 8), (3, 5, 9, 3)),
    'base': RAVLTArch((96, 192, 384, 512), (1, 2, 6, 8), (4, 6, 12, 6)),
    'large': RAVLTArch((96, 192, 448, 640), (1, 2, 7, 10), (4, 7, 19, 8)),
}
# What both scales of a stage's layers start from; 1 in all others.
SCALES = {RAVLT_ARCHS['base']: (1.0, 1.0, 1e-6, 1e-6), RAVLT_ARCHS['large']: (1e-6, 1e-6, 1e-6, 1e-6)}


def _resolve(arch: str | Mapping | RAVLTArch) -> RAVLTArch:
    custom = arch._asdict() if isinstance(arch, RAVLTArch) else dict(arch) if isinstance(arch, Mapping) else arch
    projection = custom.pop('projection', 1024) if isinstance(custom, dict) else 1024
    base = resolve_arch(custom, RAVLT_ARCHS, '; it may have a fourth, projection: the width of what the head sees')
    return base if isinstance(base, RAVLTArch) else RAVLTArch(*base, whole('arch projection', projection))


class Frequencies(nn.Identity):
    """The authors' buffer of a stage, each frequency twice: nothing else in the weights shows how wide heads are.

    Layers compute their own, in float32 also where this one is cast.
    """

    angle: Tensor

    def __init__(self, head_width: int) -> None:
        super().__init__()
        self.register_buffer('angle', position_frequencies(head_width // 4, True).repeat_interleave(2))


class ConvMlp(Mlp):
    """An MLP with a residual depth-wise convolution of its hidden map."""

    def __init__(self, dim: int, hidden: int, recompute: bool | None) -> None:
        super().__init__(dim, hidden, recompute=recompute)
        self.dwconv = nn.Conv2d(hidden, hidden, 3, padding=1, groups=hidden)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        return map_wise(x, function=lambda x: self._mix(x, grid), recompute=self.recompute)

    def _mix(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        hidden = F.gelu(self.fc1(x))
        return self.fc2(to_tokens(add_convolved(to_map(hidden, grid), self.dwconv)))


class RAVLTBlock(nn.Module):
    """Convolution, attention, MLP, each a residual; the last two are scaled by channel."""

    def __init__(self, dim: int, attn: nn.Module, mlp: nn.Module, drop_path: float, scale: float) -> None:
        super().__init__()
        self.pos = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.norm1 = nn.LayerNorm(dim, eps=EPS)
        self.attn = attn
        self.gamma_1 = nn.Parameter(torch.full((1, 1, dim), scale))
        self.norm2 = nn.LayerNorm(dim, eps=EPS)
        self.mlp = mlp
        self.gamma_2 = nn.Parameter(torch.full((1, 1, dim), scale))
        self.drop_path = StochasticDepth(drop_path, mode='row')

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        x = to_tokens(add_convolved(to_map(x, grid), self.pos))
        x, normed = add_norm(x, self.gamma_1 * self.attn(self.norm1(x), grid), self.norm2, self.drop_path)
        return add_residual(x, self.gamma_2 * self.mlp(normed, grid), self.drop_path)


def _stem(in_channels: int, dim: int) -> nn.Sequential:
    """Images to stride 4, numbered as the authors' are."""
    layers: list[nn.Module] = []
    for channels, width, stride in ((in_channels, dim // 2, 2), (dim // 2, dim // 2, 1), (dim // 2, dim // 2, 1)):
        layers += [nn.Conv2d(channels, width, 3, stride, 1), nn.BatchNorm2d(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Conv2d(dim // 2, dim, 3, 2, 1), nn.BatchNorm2d(dim))


class RAVLTOptions(PyramidOptions, total=False):
    """Of the backbone."""

    linear: bool
    norm_eval: bool


class RAVLT(NormedPyramid):
    """The backbone; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``RAVLT_ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        linear: RALA in all stages. Published weights fit as well, but were trained with softmax attention in the last
            two, whose cost is quadratic in pixels.
        norm_eval: Keep BatchNorm in evaluation mode while training.
    """

    eps = EPS

    def __init__(
        self,
        arch: str | Mapping | RAVLTArch = 'tiny',
        *,
        linear: bool = False,
        norm_eval: bool = False,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        arch = _resolve(arch)
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        self.arch, self.linear, self.norm_eval = arch, flag('linear', linear), flag('norm_eval', norm_eval)
        self.build_with_norms(self._stage)
        self.apply(_init_convolution)

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dim, heads = self.arch.dims[index], self.arch.heads[index]
        softmax = not self.linear and index >= LINEAR_STAGES
        scale = SCALES.get(self.arch, (1.0,) * 4)[index]
        blocks = []
        for rate in drop_paths:
            attn = RALAAttention(dim, heads, softmax)
            mlp = ConvMlp(dim, int(3.5 * dim), self.recompute)
            blocks.append(RAVLTBlock(dim, attn, mlp, rate, scale))
        embed = _stem(self.in_channels, dim)
        if index:
            embed = nn.Sequential(nn.Conv2d(self.arch.dims[index - 1], dim, 3, 2, 1), nn.BatchNorm2d(dim))
        return Stage(embed, Frequencies(dim // heads), blocks, self.with_cp)


def _init_convolution(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class RAVLTClassifier(RAVLT):
    """Images to logits through the mean of the last stage's tokens, projected; options are the backbone's and:

    Args:
        num_classes, global_pool, drop_rate: See :meth:`Backbone.add_head`.
    """

    trains_norms = False

    def __init__(
        self,
        arch: str | Mapping | RAVLTArch = 'tiny',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: 'Unpack[RAVLTOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate, self.arch.projection)
        self.head_proj = nn.Linear(self.stage_dims[-1], self.num_features)
        self.head_norm = nn.BatchNorm1d(self.num_features)
        init_linear(self.head_proj)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)

    def _last_stage(self, x: Tensor, output: Tensor | None) -> Tensor:
        y = to_tokens(self.stages[-1](x) if output is None else output)
        if isinstance(self.head_proj, nn.Identity):  # pruned
            return y
        y = self.head_proj(y)
        return F.silu(self.head_norm(y.transpose(1, 2)).transpose(1, 2))

    def _prune_rest(self, norm: bool, head: bool) -> None:
        if head:
            self.head_proj, self.head_norm = nn.Identity(), nn.Identity()
            self.num_features = self.head_hidden_size = self.stage_dims[len(self.stages) - 1]
        super()._prune_rest(norm, head)


_PAIRS = {
    'patch_embed.proj': 'stages.0.embed',
    **{f'layers.{i}.downsample.reduction': f'stages.{i + 1}.embed.0' for i in range(3)},
    **{f'layers.{i}.downsample.norm': f'stages.{i + 1}.embed.1' for i in range(3)},
    'layers.*.RoPE': 'stages.*.position',
    **{f'layers.*.blocks.*.norm{i}.norm': f'stages.*.blocks.*.norm{i}' for i in (1, 2)},
    'layers.*.blocks.*.ffn': 'stages.*.blocks.*.mlp',
    'layers.*.blocks': 'stages.*.blocks',
    'extra_norms.*.norm': 'pyramid.levels.*',
    'proj': 'head_proj',
    'norm': 'head_norm',
}
_our_name = renamer(_PAIRS.items())
_published_name = renamer((ours, theirs) for theirs, ours in _PAIRS.items())
# Where the authors have 1 x 1 convolutions and we linear maps, and scales of maps and of tokens.
_LINEAR = re.compile(r'(stages\.\d+\.blocks\.\d+\.(attn\.(qkvo|proj)|mlp\.fc[12])|head_proj|head)\.weight')
_SCALE = re.compile(r'stages\.\d+\.blocks\.\d+\.gamma_[12]')


def _to_ours(weights: Weights) -> dict[str, Tensor]:
    converted = {}
    for name, value in weights.items():
        name = _our_name(name)
        if _LINEAR.fullmatch(name) and value.shape[2:] == (1, 1):
            value = value[:, :, 0, 0]
        elif _SCALE.fullmatch(name) and value.dim() == 4:
            value = value[..., 0].transpose(1, 2)  # (1, C, 1, 1) -> (1, 1, C)
        converted[name] = value
    return converted


def _to_published(weights: Weights) -> dict[str, Tensor]:
    converted = {}
    for name, value in weights.items():
        if _LINEAR.fullmatch(name):
            value = value[:, :, None, None]
        elif _SCALE.fullmatch(name):
            value = value.transpose(1, 2).unsqueeze(3)
        converted[_published_name(name)] = value
    return converted


def _options(weights: Weights) -> dict[str, Any]:
    dims = tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES)
    heads = tuple(dims[i] // (2 * weights[f'stages.{i}.position.angle'].shape[0]) for i in STAGES)
    projection = weights['head_proj.weight'].shape[0] if 'head_proj.weight' in weights else 1024
    arch = RAVLTArch(dims, heads, depths(weights), projection)
    return dict(arch=arch, in_channels=weights['stages.0.embed.0.weight'].shape[1])


def _timm_cfg(arch: str) -> dict[str, Any]:
    return dict(first_conv='stages.0.embed.0', license='mit', paper_ids='arXiv:2411.07635')


FAMILY = Family(
    title='RAVLT',
    backbone=RAVLT,
    classifier=RAVLTClassifier,
    archs=RAVLT_ARCHS,
    ours=('stages.0.blocks.0.gamma_1', 'stages.0.blocks.0.attn.qkvo.weight'),
    options=_options,
    unseen=dict(linear=False),
    head=('head_proj', 'head_norm', 'head'),
    published=('patch_embed.proj.0.weight', 'layers.0.blocks.0.attn.qkvo.weight'),
    to_ours=_to_ours,
    to_published=_to_published,
    timm_cfg=_timm_cfg,
    page='https://huggingface.co/aldjalkdf/RAVLT',
    fits='RAVLT_T, S, B and L fit ravlt_tiny, small, base and large',
)
