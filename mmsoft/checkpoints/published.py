"""From the authors' weights alone to a model that gives their logits."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from mmsoft.models import Checkpoint
from mmsoft.models.backbone import PYRAMID
from mmsoft.models.checkpoint import BACKBONE
from mmsoft.models.family import FAMILIES
from mmsoft.weights import CheckpointError

from .architecture import read_architecture


def from_published(state_dict: str | Path | Mapping, strict: bool = True, **overrides: Any) -> nn.Module:
    """The model to which published weights belong, with them loaded, in evaluation mode.

    It is a classifier, or a backbone if the weights are those of a detector or of the authors' variant for dense
    prediction; with ``num_classes`` these become a classifier as well, with a new head. The family, widths, heads,
    depths, classes and, where there are position tables, image size are read from the weights. ``overrides`` are
    options of the model: ``mmsoft.models.FAMILIES[title].unseen`` has those that leave no trace in weights, and what is
    taken for them. Another ``num_classes``, or weights without a head, leave the head at its random start; another
    ``img_size`` resizes the position tables. ``strict=False`` permits options with which some weights have no place.
    """
    checkpoint = Checkpoint.open(state_dict)
    if not checkpoint.family or not checkpoint.published:
        known = [f'{family.example[0]} of {family.title}' for family in FAMILIES.values() if family.published]
        raise CheckpointError(
            f'{checkpoint.source} is not a published checkpoint of a known family: it has no {", ".join(known)}; '
            f'its first name is {next(iter(checkpoint.weights))!r}'
        )
    weights = {name.removeprefix(BACKBONE): x for name, x in checkpoint.weights.items() if name.startswith(BACKBONE)}
    weights = weights or checkpoint.weights
    read = read_architecture(weights)
    dense = read.num_classes is None and any(name.startswith(PYRAMID) for name in weights)
    if dense and 'num_classes' not in overrides:
        model = checkpoint.family.backbone(**read.options | overrides)
    else:
        model = checkpoint.family.classifier(**read.options | dict(num_classes=read.num_classes or 1000) | overrides)
    checkpoint.load_into(model, strict=strict, new_head='differ')
    return model.eval()
