"""From the authors' weights alone to a model that gives their logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmsoft.models import SOFTClassifier

from .architecture import read_architecture
from .files import read_state_dict
from .loading import load_weights
from .messages import CheckpointError
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
    weights = convert_published_soft(weights)
    read = read_architecture(weights)
    model = SOFTClassifier(**read._asdict() | dict(num_classes=read.num_classes or 1000) | overrides)
    has_head = 'head.weight' in weights and weights['head.weight'].shape == model.head.weight.shape
    fresh = () if has_head else ('head.weight', 'head.bias')
    load_weights(model, weights, source=source, strict=strict, fresh=fresh)
    return model.eval()
