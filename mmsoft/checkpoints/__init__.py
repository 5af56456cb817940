"""Checkpoints of our models: opened, loaded with a report, converted, built from alone."""

import importlib
import sys

from mmsoft.versions import require

require('torch', 'torchvision')

from mmsoft.models import Checkpoint
from mmsoft.weights import EMA_KEY, CheckpointError, LoadReport, load_weights, read_checkpoint, read_state_dict

from .architecture import Architecture, read_architecture
from .converting import convert
from .loading import load, load_pretrained, names_for
from .published import from_published

__all__ = [
    'EMA_KEY',
    'Architecture',
    'Checkpoint',
    'CheckpointError',
    'LoadReport',
    'convert',
    'from_published',
    'load',
    'load_pretrained',
    'load_weights',
    'names_for',
    'read_architecture',
    'read_checkpoint',
    'read_state_dict',
]

# Where these modules were before: imports of others stay good.
for _name in ('archives', 'files', 'messages', 'meta', 'pickles', 'renaming', 'shapes', 'sources', 'writing'):
    sys.modules[f'{__name__}.{_name}'] = globals()[_name] = importlib.import_module(f'mmsoft.weights.{_name}')
sys.modules[f'{__name__}.families'] = importlib.import_module('mmsoft.models.family')
