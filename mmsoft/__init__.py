"""Linear-complexity attention backbones for dense vision."""

import importlib
from typing import Any

__version__ = '0.1.0'

_MODELS = ('SOFT', 'SOFTClassifier')
_ROOMS = ('checkpoints', 'datasets', 'engine', 'layers', 'models', 'ops', 'registry', 'versions')


def __getattr__(name: str) -> Any:
    """``mmsoft.SOFT`` and ``mmsoft.checkpoints`` load when they are first used, so that importing stays light."""
    if name in _MODELS:
        return getattr(importlib.import_module('mmsoft.models'), name)
    if name in _ROOMS:
        return importlib.import_module(f'mmsoft.{name}')
    raise AttributeError(f'module mmsoft has no attribute {name!r}; it has {", ".join(_MODELS + _ROOMS)}')
