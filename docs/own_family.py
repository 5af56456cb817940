"""A family of your own: a pyramid that mixes tokens by depth-wise convolutions; own_family.md walks through it.

Yu et al., "MetaFormer Baselines for Vision", TPAMI 2024, from whose ConvFormer the mixing of tokens is.
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Unpack

import mmsoft
from mmsoft.layers import Mlp, PatchEmbed, PreNormBlock
from mmsoft.models import STRIDES, Arch, Pyramid, PyramidOptions, Stage, resolve_arch
from mmsoft.ops import to_map, to_tokens
from mmsoft.ops.checks import whole
from mmsoft.weights import Weights, count_layers, renamer

ARCHS = {
    'tiny': Arch((64, 128, 320, 512), (1, 1, 1, 1), (2, 2, 4, 2)),
    'small': Arch((64, 128, 320, 512), (1, 1, 1, 1), (3, 3, 9, 3)),
}


class TokenMixer(nn.Module):
    """Wider channels, a depth-wise convolution over the grid, and back."""

    def __init__(self, dim: int, kernel: int) -> None:
        super().__init__()
        self.expand = nn.Linear(dim, 2 * dim)
        self.conv = nn.Conv2d(2 * dim, 2 * dim, kernel, padding=kernel // 2, groups=2 * dim)
        self.reduce = nn.Linear(2 * dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        return self.reduce(to_tokens(self.conv(to_map(F.gelu(self.expand(x)), grid))))


class ConvFormerOptions(PyramidOptions, total=False):
    """Of the backbone, for type checkers."""

    kernel: int


class ConvFormer(Pyramid):
    """The backbone; options are those of :class:`mmsoft.models.Pyramid` and:

    Args:
        arch: A name of ``ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        kernel: Side of the convolutions, an odd number.
    """

    def __init__(
        self, arch: str | Mapping | Arch = 'tiny', *, kernel: int = 7, **options: Unpack[PyramidOptions]
    ) -> None:
        arch = resolve_arch(arch, ARCHS)
        super().__init__(arch.dims, STRIDES, arch.depths, **options)
        if whole('kernel', kernel) % 2 == 0:
            raise ValueError(f'kernel must be odd, to have a centre; got {kernel}')
        self.arch, self.kernel = arch, kernel
        self.build(self._stage, nn.LayerNorm)

    def _stage(self, index: int, drop_paths: list[float]) -> Stage:
        dim = self.arch.dims[index]
        embed = PatchEmbed(self.arch.dims[index - 1], dim, 3, 2) if index else PatchEmbed(self.in_channels, dim, 7, 4)
        blocks = [
            PreNormBlock(dim, TokenMixer(dim, self.kernel), Mlp(dim, 4 * dim, 'none', self.recompute), rate, eps=1e-6)
            for rate in drop_paths
        ]
        return Stage(embed, nn.Identity(), blocks, self.with_cp)


class ConvFormerClassifier(ConvFormer):
    """Images to logits through the mean of the last stage's tokens; options are also those of ``add_head``."""

    def __init__(
        self,
        arch: str | Mapping | Arch = 'tiny',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: Unpack[ConvFormerOptions],
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)


# How somebody else's files call it, and we do; ``*`` is the number of a layer.
NAMES = {f'downsample_layers.{i}.conv': f'stages.{i}.embed.proj' for i in range(4)}
NAMES |= {f'downsample_layers.{i}.norm': f'stages.{i}.embed.norm' for i in range(4)}
NAMES |= {f'stages.{i}.*.token_mixer.dwconv': f'stages.{i}.blocks.*.attn.conv' for i in range(4)}
NAMES |= {f'stages.{i}.*.token_mixer.pwconv1': f'stages.{i}.blocks.*.attn.expand' for i in range(4)}
NAMES |= {f'stages.{i}.*.token_mixer.pwconv2': f'stages.{i}.blocks.*.attn.reduce' for i in range(4)}
NAMES |= {f'stages.{i}.*': f'stages.{i}.blocks.*' for i in range(4)}
to_ours, to_theirs = renamer(NAMES.items()), renamer((ours, theirs) for theirs, ours in NAMES.items())


def read_options(weights: Weights) -> dict[str, Any]:
    """What shapes show."""
    dims = tuple(weights[f'stages.{i}.embed.proj.weight'].shape[0] for i in range(4))
    depths = tuple(count_layers(weights, f'stages.{i}.blocks') for i in range(4))
    kernel = weights['stages.0.blocks.0.attn.conv.weight'].shape[-1]
    in_channels = weights['stages.0.embed.proj.weight'].shape[1]
    return dict(arch=Arch(dims, (1, 1, 1, 1), depths), kernel=kernel, in_channels=in_channels)


FAMILY = mmsoft.register_family(
    mmsoft.Family(
        title='ConvFormer',
        backbone=ConvFormer,
        classifier=ConvFormerClassifier,
        archs=ARCHS,
        ours=('stages.0.embed.proj.weight', 'stages.0.blocks.0.attn.conv.weight'),
        options=read_options,
        published=('downsample_layers.0.conv.weight', 'stages.0.0.token_mixer.dwconv.weight'),
        to_ours=lambda weights: {to_ours(name): value for name, value in weights.items()},
        to_published=lambda weights: {to_theirs(name): value for name, value in weights.items()},
        timm_cfg=lambda arch: dict(first_conv='stages.0.embed.proj'),
    )
)
