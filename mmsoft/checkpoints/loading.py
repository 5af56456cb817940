"""What loading was called before :class:`Checkpoint`: thin names for it."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from mmsoft.models import Checkpoint
from mmsoft.weights.fitting import LoadReport, fit_weights, load_weights, take_prefix

__all__ = ['LoadReport', 'fit_weights', 'load', 'load_pretrained', 'load_weights', 'names_for', 'take_prefix']


def load(source: str | Path | Mapping, trust: bool = False) -> dict[str, Tensor]:
    """Weights with our names: ``Checkpoint.open(source).weights``."""
    return Checkpoint.open(source, trust).weights


def names_for(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights as ``model`` calls them: ``Checkpoint.open(weights).named_for(model)``."""
    return Checkpoint.open(weights).named_for(model)


def load_pretrained(
    model: nn.Module,
    checkpoint: str | Path | Mapping,
    prefix: str | None = None,
    strict: bool = True,
    trust: bool = False,
    new_head: str = 'never',
) -> LoadReport:
    """``Checkpoint.open(checkpoint).load_into(model)``."""
    return Checkpoint.open(checkpoint, trust).load_into(model, prefix, strict, new_head)
