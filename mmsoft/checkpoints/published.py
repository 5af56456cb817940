"""From the authors' weights alone to a model that gives their logits."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from mmsoft.models import Arch, SOFTClassifier

from .files import CheckpointError, read_state_dict
from .loading import load_weights
from .soft_names import convert_published_soft, is_published_soft


def from_published(state_dict: str | Path | Mapping, strict: bool = True, **overrides: Any) -> SOFTClassifier:
    """The classifier to which published weights belong, with them loaded, in evaluation mode.

    Widths, heads, depths, image size and classes are read from the weights. ``overrides`` are
    options of :class:`mmsoft.models.SOFTClassifier`; ``attn='soft'`` or ``'soft_pp'`` (the default)
    cannot be told from the weights. Another ``num_classes``, or weights without a head, leave the
    head at its random start; another ``img_size`` resizes the position tables. ``strict=False``
    permits options with which some weights have no place.
    """
    source = str(state_dict) if isinstance(state_dict, (str, Path)) else 'a state dict'
    weights = read_state_dict(state_dict)
    if not is_published_soft(weights):
        raise CheckpointError(
            f'{source} is not a published SOFT checkpoint: it has no patch_embed1.proj.0.weight and pos_embed1; '
            f'its first name is {next(iter(weights))!r}'
        )
    options = _read_options(weights) | overrides
    model = SOFTClassifier(**options)
    has_head = 'head.weight' in weights and weights['head.weight'].shape == model.head.weight.shape
    fresh = () if has_head else ('head.weight', 'head.bias')
    load_weights(model, convert_published_soft(weights), source=source, strict=strict, fresh=fresh)
    return model.eval()


def _read_options(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Options of the classifier that has these tensors."""
    try:
        dims = tuple(weights[f'pos_embed{i}'].shape[-1] for i in range(1, 5))
        head_dim = weights['block1.0.att.mha.attn.Qlandmark_op.weight'].shape[0]
        depths = tuple(_count_blocks(weights, i) for i in range(1, 5))
        return dict(
            arch=Arch(dims, tuple(dim // head_dim for dim in dims), depths),
            in_channels=weights['patch_embed1.proj.0.weight'].shape[1],
            img_size=4 * math.isqrt(weights['pos_embed1'].shape[1]),
            num_classes=weights['head.weight'].shape[0] if 'head.weight' in weights else 1000,
        )
    except KeyError as error:
        raise CheckpointError(f'the published checkpoint lacks {error}') from error


def _count_blocks(weights: Mapping[str, Tensor], stage: int) -> int:
    prefix = f'block{stage}.'
    return len({name.split('.')[1] for name in weights if name.startswith(prefix)})
