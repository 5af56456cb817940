"""Weights of the InLine families: names and layouts of the paper's authors, and what shapes tell of all of them."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mmsoft.weights.renaming import flat_table, renamer, split_table
from mmsoft.weights.shapes import STAGES, Weights, depths

from .inline_archs import InLineArch

PAPER = 'arXiv:2412.06590'
PAGE = 'https://github.com/LeapLabTHU/InLine'


class InLineNames(NamedTuple):
    """The translation of one family.

    ``pairs``: beginnings of names, the authors' and ours, with ``*`` for the number of a layer or branch; ``norm``,
    ``head`` and ``cls_token`` have one name. ``stacked``: their InLine blocks have ``qkv`` for our ``q`` and ``kv``.
    """

    pairs: Mapping[str, str]
    stacked: bool = False

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


def read_arch(weights: Weights, heads: list[int]) -> InLineArch:
    """Of four stages."""
    dims = tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES)
    predictors = [name for name in weights if name.endswith('predictor.0.weight')]  # one in every InLine layer
    inline = tuple(sum(name.startswith(f'stages.{i}.') for name in predictors) for i in STAGES)
    return InLineArch(dims, tuple(heads), depths(weights), inline)


def read_heads(weights: Weights, predictor: str) -> int:
    """Heads of the predictor of local kernels: its grouped convolution is (C, C / heads, 1)."""
    channels, width, _ = weights[f'{predictor}.0.weight'].shape
    return channels // width


def timm_cfg(arch: str) -> dict[str, Any]:
    """What timm should know of a family with four stages."""
    return dict(first_conv='stages.0.embed.proj', license='apache-2.0', paper_ids=PAPER)
