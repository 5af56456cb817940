"""What the shapes of weights with our names tell: options of the model that they belong to."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmsoft.models import Arch
from mmsoft.models.inline_archs import InLineArch

from .messages import CheckpointError

Weights = Mapping[str, Tensor]
STAGES = range(4)


def image_size(weights: Weights) -> tuple[int, int] | None:
    """(height, width) of the images whose grids the position tables have; None where there are none.

    The first table, (1, h, w, C), is at stride 4 in a pyramid, where others follow it, and at 16 in a plain network.
    """
    table = weights.get('stages.0.position.table', weights.get('position.table'))
    if table is None:
        return None
    stride = 4 if 'stages.1.position.table' in weights else 16
    return stride * table.shape[1], stride * table.shape[2]


def soft_options(weights: Weights) -> dict[str, Any]:
    """Of a SOFT backbone of all four stages. Heads of stage 4 leave no trace; they are as wide as those of stage 3."""
    if 'stages.0.blocks.0.attn.local' not in weights or 'stages.1.position.table' not in weights:
        raise CheckpointError(
            'the architecture of SOFT is read from the weights of attn soft and soft_pp in a pyramid alone, of which '
            'these are not: build the model with its options and load the weights into it'
        )
    tables = [weights[f'stages.{i}.position.table'].shape for i in STAGES]  # (1, h, w, C)
    dims = tuple(table[3] for table in tables)
    heads = tuple(weights[f'stages.{i}.blocks.0.attn.local'].shape[0] for i in range(3))
    return dict(
        arch=Arch(dims, (*heads, dims[3] * heads[2] // dims[2]), _depths(weights)),
        in_channels=weights['stages.0.embed.0.0.weight'].shape[1],
        img_size=image_size(weights),
    )


def inline_pvt_options(weights: Weights) -> dict[str, Any]:
    hidden = [weights[f'stages.{i}.blocks.0.mlp.fc1.weight'].shape for i in STAGES]  # (ratio * C, C)
    return dict(
        arch=_arch(weights, [_groups(weights, f'stages.{i}.blocks.0.attn.predictor') for i in STAGES]),
        in_channels=weights['stages.0.embed.proj.weight'].shape[1],
        img_size=image_size(weights),
        mlp_ratios=tuple(rows // columns for rows, columns in hidden),
    )


def inline_swin_options(weights: Weights) -> dict[str, Any]:
    heads, options = [], {}
    for stage in STAGES:
        tables = [weights[name] for name in weights if _is_bias_table(name, stage)]  # ((2 window - 1)^2, heads)
        if tables:
            options['window_size'] = (math.isqrt(tables[0].shape[0]) + 1) // 2
        heads.append(tables[0].shape[1] if tables else _groups(weights, f'stages.{stage}.blocks.0.attn.predictor'))
    in_channels = weights['stages.0.embed.proj.weight'].shape[1]
    return dict(arch=_arch(weights, heads), in_channels=in_channels, **options)


def inline_deit_options(weights: Weights) -> dict[str, Any]:
    dim, in_channels, *_ = weights['embed.proj.weight'].shape
    depth = _count(weights, 'blocks')
    return dict(
        arch=InLineArch((dim,), (_groups(weights, 'blocks.0.attn.predictor'),), (depth,), (depth,)),
        in_channels=in_channels,
        img_size=image_size(weights),
    )


def inline_cswin_options(weights: Weights) -> dict[str, Any]:
    """Softmax blocks do not show their heads: twice those of the stage before; nor does anything show their split."""
    heads = []
    for stage in STAGES:
        predictor = f'stages.{stage}.blocks.0.attn.branches.0.predictor'
        doubled = heads and f'{predictor}.0.weight' not in weights
        heads.append(2 * heads[-1] if doubled else _groups(weights, predictor))
    return dict(arch=_arch(weights, heads), in_channels=weights['stages.0.embed.proj.weight'].shape[1])


def _arch(weights: Weights, heads: list[int]) -> InLineArch:
    dims = tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES)
    predictors = [name for name in weights if name.endswith('predictor.0.weight')]  # one in every InLine layer
    inline = tuple(sum(name.startswith(f'stages.{i}.') for name in predictors) for i in STAGES)
    return InLineArch(dims, tuple(heads), _depths(weights), inline)


def _depths(weights: Weights) -> tuple[int, ...]:
    return tuple(_count(weights, f'stages.{i}.blocks') for i in STAGES)


def _count(weights: Weights, prefix: str) -> int:
    """How many numbers follow ``prefix``."""
    place = prefix.count('.') + 1
    return len({name.split('.')[place] for name in weights if name.startswith(f'{prefix}.')})


def _groups(weights: Weights, predictor: str) -> int:
    """Heads of the predictor of local kernels: its grouped convolution is (C, C / heads, 1)."""
    channels, width, _ = weights[f'{predictor}.0.weight'].shape
    return channels // width


def _is_bias_table(name: str, stage: int) -> bool:
    return name.startswith(f'stages.{stage}.') and name.endswith('relative_position_bias_table')
