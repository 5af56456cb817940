"""Names and layouts of the InLine weights that the paper's authors publish, and ours: a table a family, both ways."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from .renaming import flat_table, renamer, split_table

# Beginnings of names, the authors' and ours; ``*`` is the number of a layer or branch. ``norm``, ``head`` and
# ``cls_token`` have one name.
_PVT = {
    theirs: ours
    for i in range(4)
    for theirs, ours in {
        f'patch_embed{i + 1}': f'stages.{i}.embed',
        f'pos_embed{i + 1}': f'stages.{i}.position.table',
        f'block{i + 1}.*.attn.residual': f'stages.{i}.blocks.*.attn.predictor',
        f'block{i + 1}': f'stages.{i}.blocks',
    }.items()
}
_SWIN = {
    'patch_embed': 'stages.0.embed',
    **{f'layers.{i}.downsample': f'stages.{i + 1}.embed' for i in range(3)},
    'layers.*.blocks.*.attn.residual': 'stages.*.blocks.*.attn.predictor',
    'layers.*.blocks': 'stages.*.blocks',
}
_DEIT = {
    'patch_embed': 'embed',
    'pos_embed': 'position.table',
    'blocks.*.attn.residual': 'blocks.*.attn.predictor',
}
_CSWIN = {
    'stage1_conv_embed.0': 'stages.0.embed.proj',
    'stage1_conv_embed.2': 'stages.0.embed.norm',
    **{f'merge{i}.conv': f'stages.{i}.embed.proj' for i in range(1, 4)},
    **{f'merge{i}.norm': f'stages.{i}.embed.norm' for i in range(1, 4)},
    **{
        theirs: ours
        for i in range(4)
        for theirs, ours in {
            f'stage{i + 1}.*.attns.*.get_v': f'stages.{i}.blocks.*.attn.branches.*.lepe',
            f'stage{i + 1}.*.attns.*.residual': f'stages.{i}.blocks.*.attn.branches.*.predictor',
            f'stage{i + 1}.*.qkv': f'stages.{i}.blocks.*.attn.qkv',
            f'stage{i + 1}.*.proj': f'stages.{i}.blocks.*.attn.proj',
            f'stage{i + 1}': f'stages.{i}.blocks',
        }.items()
    },
}


class InLineNames(NamedTuple):
    """The names of one family.

    ``published`` and ``ours`` are tensors that every file of it has, of its first layer; ``not_ours`` one that tells
    it from a family with the same names; ``stacked``: their InLine blocks have ``qkv`` for our ``q`` and ``kv``.
    """

    pairs: Mapping[str, str]
    published: tuple[str, ...]
    ours: tuple[str, ...]
    not_ours: tuple[str, ...] = ()
    stacked: bool = False

    def is_published(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether these are the authors' names (and not ours)."""
        return all(name in weights for name in self.published)

    def is_ours(self, weights: Mapping[str, Tensor]) -> bool:
        """Whether these are our names of a backbone or classifier."""
        return all(name in weights for name in self.ours) and not any(name in weights for name in self.not_ours)

    def to_ours(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The authors' names -> ours; position tables become grids.

        A name that is not known passes through, so that loading can report it.
        """
        rename, converted = renamer(self.pairs.items()), {}
        for name, value in weights.items():
            ours = rename(name)
            if ours.endswith('position.table'):
                converted[ours], leading = split_table(name, value)
                if leading is not None:
                    converted['cls_position'] = leading
            elif 'attn.qkv.' in name and name.replace('qkv', 'residual.0') in weights:  # of an InLine block
                dim = len(value) // 3
                converted[ours.replace('qkv', 'q')], converted[ours.replace('qkv', 'kv')] = value[:dim], value[dim:]
            else:
                converted[ours] = value
        return converted

    def to_published(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Our names -> the authors'; grids become lists of entries, after that of the class token if there is one."""
        rename, converted = renamer((ours, theirs) for theirs, ours in self.pairs.items()), {}
        weights = self._with_qkv(weights)
        for name, value in weights.items():
            if name.endswith('position.table'):
                value = flat_table(name, value)
                if 'cls_position' in weights:
                    value = torch.cat((weights['cls_position'], value), 1)
            if name != 'cls_position':
                converted[rename(name)] = value
        return converted

    def _with_qkv(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``q`` and ``kv`` stacked where the authors have them so."""
        if not self.stacked:
            return dict(weights)
        result = {}
        for name, value in weights.items():
            match = re.fullmatch(r'(.*attn\.)(q|kv)\.(weight|bias)', name)
            parts = [f'{match[1]}{part}.{match[3]}' for part in ('q', 'kv')] if match else []
            if not match or any(part not in weights for part in parts):
                result[name] = value
            elif match[2] == 'q':
                result[f'{match[1]}qkv.{match[3]}'] = torch.cat([weights[part] for part in parts])
        return result


INLINE_PVT = InLineNames(
    _PVT,
    published=('patch_embed1.proj.weight', 'pos_embed1', 'block1.0.attn.residual.0.weight'),
    ours=('stages.0.embed.proj.weight', 'stages.0.position.table'),
)
INLINE_SWIN = InLineNames(
    _SWIN,
    published=('patch_embed.proj.weight', 'layers.0.blocks.0.attn.qkv.weight'),
    ours=('stages.0.embed.norm.weight', 'stages.0.blocks.0.attn.proj.weight'),
    not_ours=('stages.0.position.table', 'stages.0.blocks.0.attn.branches.0.lepe.weight'),
    stacked=True,
)
INLINE_DEIT = InLineNames(
    _DEIT,
    published=('patch_embed.proj.weight', 'pos_embed', 'blocks.0.attn.qkv.weight', 'blocks.0.attn.residual.0.weight'),
    ours=('embed.proj.weight', 'position.table', 'blocks.0.attn.predictor.0.weight'),
    stacked=True,
)
INLINE_CSWIN = InLineNames(
    _CSWIN,
    published=('stage1_conv_embed.0.weight', 'stage1.0.qkv.weight'),
    ours=('stages.0.embed.proj.weight', 'stages.0.blocks.0.attn.branches.0.lepe.weight'),
)
