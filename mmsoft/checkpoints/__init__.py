"""Weights: finding and reading files safely, the authors' names, loading with a report, converting."""

from mmsoft.versions import require

require('torch', 'torchvision')

from .architecture import Architecture, read_architecture
from .converting import convert
from .files import EMA_KEY, read_checkpoint, read_state_dict
from .loading import LoadReport, load, load_pretrained, load_weights, names_for
from .messages import CheckpointError
from .published import from_published

__all__ = [
    'EMA_KEY',
    'Architecture',
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
