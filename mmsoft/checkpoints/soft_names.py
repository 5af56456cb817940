"""Names and layouts of the SOFT weights that the papers' authors publish, and what is ours."""

import math
import re

from torch import Tensor

from .files import CheckpointError

_SAME = ('norm', 'head', 'cls_token')
_RENAMES = [
    (r'block([123])\.(\d+)\.att\.mha\.W_([qv])\.', r'stages.\1.blocks.\2.attn.\3.'),
    (r'block([123])\.(\d+)\.att\.mha\.ff\.', r'stages.\1.blocks.\2.attn.proj.'),
    (r'block([123])\.(\d+)\.att\.mha\.attn\.Qlandmark_op\.', r'stages.\1.blocks.\2.attn.landmarks.conv.'),
    (r'block([123])\.(\d+)\.att\.mha\.attn\.Qnorm_act\.0\.', r'stages.\1.blocks.\2.attn.landmarks.norm.'),
    (r'block([123])\.(\d+)\.att\.mha\.attn\.conv\.weight', r'stages.\1.blocks.\2.attn.local'),
    (r'block([123])\.(\d+)\.att\.(norm[12])\.', r'stages.\1.blocks.\2.\3.'),
    (r'block([123])\.(\d+)\.att\.ff([12])\.', r'stages.\1.blocks.\2.mlp.fc\3.'),
    (r'block(4)\.(\d+)\.(norm[12]|attn\.(?:q|kv|proj)|mlp\.fc[12])\.', r'stages.\1.blocks.\2.\3.'),
]


def is_published_soft(weights: dict[str, Tensor]) -> bool:
    """Whether these are the authors' names (and not ours)."""
    return 'patch_embed1.proj.0.weight' in weights and 'pos_embed1' in weights


def convert_published_soft(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names -> ours; position tables become grids.

    A name that is not known passes through, so that loading can report it.
    """
    converted = {}
    for name, value in weights.items():
        if re.fullmatch(r'pos_embed[1-4]', name):
            stage, grid, leading = int(name[-1]) - 1, *_split_table(name, value)
            converted[f'stages.{stage}.position.table'] = grid
            if leading is not None:
                converted['cls_position'] = leading
        else:
            converted[_rename(name)] = value
    return converted


def _split_table(name: str, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """(1, n, C) -> the (1, s, s, C) grid, and the class token's entry (1, 1, C) if there is one."""
    count = table.shape[1]
    side = math.isqrt(count)
    if side * side == count:
        return table.unflatten(1, (side, side)), None
    side = math.isqrt(count - 1)
    if side * side == count - 1:
        return table[:, 1:].unflatten(1, (side, side)), table[:, :1]
    raise CheckpointError(f'{name} has {count} entries: neither a square grid nor one with a class token')


def _rename(name: str) -> str:
    if name.split('.')[0] in _SAME:
        return name
    embed = re.fullmatch(r'patch_embed([1-4])\.proj\.(\d+)\.(.+)', name)
    if embed:
        stage, layer, rest = int(embed[1]) - 1, int(embed[2]), embed[3]
        # the first embedding is a sequence of (conv, bn, relu) units, the others are one unit
        unit = f'{layer // 3}.{layer % 3}' if stage == 0 else f'{layer}'
        return f'stages.{stage}.embed.{unit}.{rest}'
    for pattern, replacement in _RENAMES:
        renamed, hits = re.subn(f'^{pattern}', replacement, name)
        if hits:
            return re.sub(r'^stages\.(\d)', lambda m: f'stages.{int(m[1]) - 1}', renamed)
    return name
