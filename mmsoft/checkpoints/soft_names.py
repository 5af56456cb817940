"""Names and layouts of the SOFT weights that the papers' authors publish, and ours: one table, read both ways."""

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from .renaming import flat_table, renamer, split_table

# Within a layer: the authors' name, ours. ``norm``, ``head`` and ``cls_token`` have one name.
_SOFT_LAYER = {
    'att.mha.W_q': 'attn.q',
    'att.mha.W_v': 'attn.v',
    'att.mha.ff': 'attn.proj',
    'att.mha.attn.Qlandmark_op': 'attn.landmarks.conv',
    'att.mha.attn.Qnorm_act.0': 'attn.landmarks.norm',
    'att.mha.attn.conv.weight': 'attn.local',
    'att.norm1': 'norm1',
    'att.norm2': 'norm2',
    'att.ff1': 'mlp.fc1',
    'att.ff2': 'mlp.fc2',
}
_SOFTMAX_LAYER = {name: name for name in ('norm1', 'norm2', 'attn.q', 'attn.kv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')}


def _pairs() -> Iterator[tuple[str, str]]:
    """(the authors' prefix, ours); ``*`` is the number of a layer."""
    for stage in range(4):
        for theirs, ours in (_SOFT_LAYER if stage < 3 else _SOFTMAX_LAYER).items():
            yield f'block{stage + 1}.*.{theirs}', f'stages.{stage}.blocks.*.{ours}'
        # the first embedding is three units of (conv, bn, relu), which the authors count through
        for unit in range(3 if stage == 0 else 1):
            for part in (0, 1):
                ours = f'{unit}.{part}' if stage == 0 else f'{part}'
                yield f'patch_embed{stage + 1}.proj.{3 * unit + part}', f'stages.{stage}.embed.{ours}'


_our_name = renamer(_pairs())
_published_name = renamer((ours, theirs) for theirs, ours in _pairs())


def is_published_soft(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are the authors' names (and not ours)."""
    return 'patch_embed1.proj.0.weight' in weights and 'pos_embed1' in weights


def is_our_soft(weights: Mapping[str, Tensor]) -> bool:
    """Whether these are our names of a SOFT backbone or classifier, of whatever attention."""
    return 'stages.0.position.table' in weights and 'stages.0.embed.0.0.weight' in weights


def convert_published_soft(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names -> ours; position tables become grids.

    A name that is not known passes through, so that loading can report it.
    """
    converted = {}
    for name, value in weights.items():
        if re.fullmatch(r'pos_embed[1-4]', name):
            stage, grid, leading = int(name[-1]) - 1, *split_table(name, value)
            converted[f'stages.{stage}.position.table'] = grid
            if leading is not None:
                converted['cls_position'] = leading
        else:
            converted[_our_name(name)] = value
    return converted


def convert_to_published_soft(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names -> the authors'; grids become lists of entries, the class token's before the others of the last."""
    converted = {}
    for name, value in weights.items():
        table = re.fullmatch(r'stages\.([0-3])\.position\.table', name)
        if table:
            value = flat_table(name, value)
            if table[1] == '3' and 'cls_position' in weights:
                value = torch.cat((weights['cls_position'], value), 1)
            converted[f'pos_embed{int(table[1]) + 1}'] = value
        elif name != 'cls_position':
            converted[_published_name(name)] = value
    return converted
