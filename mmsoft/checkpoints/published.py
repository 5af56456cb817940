"""From the authors' weights alone to a model that gives their logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from .architecture import read_architecture
from .families import FAMILIES, published_family
from .files import read_state_dict
from .loading import load_weights
from .messages import CheckpointError


def from_published(state_dict: str | Path | Mapping, strict: bool = True, **overrides: Any) -> nn.Module:
    """The classifier to which published weights belong, with them loaded, in evaluation mode.

    The family (SOFT, or an InLine-PVT, -Swin, -DeiT or -CSwin), widths, heads, depths, classes and, where there are
    position tables, image size are read from the weights. ``overrides`` are options of the classifier, such as
    :class:`mmsoft.models.SOFTClassifier`, whose ``attn='soft'`` or ``'soft_pp'`` (the default) cannot be told from
    the weights, nor can InLine's ``kernel`` or CSwin's ``window_size``. Another ``num_classes``, or weights without a
    head, leave the head at its random start; another ``img_size`` resizes the position tables. ``strict=False``
    permits options with which some weights have no place.
    """
    source = str(state_dict) if isinstance(state_dict, (str, Path)) else 'a state dict'
    weights = read_state_dict(state_dict)
    family = published_family(weights)
    if family is None:
        known = ', '.join(f'{family.example[0]} of {family.title}' for family in FAMILIES)
        raise CheckpointError(
            f'{source} is not a published SOFT checkpoint nor one of InLine: it has no {known}; '
            f'its first name is {next(iter(weights))!r}'
        )
    weights = family.to_ours(weights)
    read = read_architecture(weights)
    model = family.classifier(**read.options | dict(num_classes=read.num_classes or 1000) | overrides)
    has_head = 'head.weight' in weights and weights['head.weight'].shape == model.head.weight.shape
    fresh = () if has_head else ('head.weight', 'head.bias')
    load_weights(model, weights, source=source, strict=strict, fresh=fresh)
    return model.eval()
