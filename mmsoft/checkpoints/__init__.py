"""Weights: reading files safely, the authors' names, loading with a report."""

from mmsoft.versions import require

require('torch', 'torchvision')

from .files import CheckpointError, read_checkpoint, read_state_dict
from .loading import LoadReport, load_pretrained, load_weights
from .published import from_published

__all__ = [
    'CheckpointError',
    'LoadReport',
    'from_published',
    'load_pretrained',
    'load_weights',
    'read_checkpoint',
    'read_state_dict',
]
