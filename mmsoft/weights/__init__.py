"""Files of weights, whatever model they are of: found, read safely, renamed, fitted with a report, written."""

from mmsoft.versions import require

require('torch', 'torchvision')

from .files import EMA_KEY, read_checkpoint, read_state_dict
from .fitting import LoadReport, fit_weights, load_weights
from .messages import CheckpointError
from .renaming import renamer
from .shapes import Weights, count_layers

__all__ = [
    'EMA_KEY',
    'CheckpointError',
    'LoadReport',
    'Weights',
    'count_layers',
    'fit_weights',
    'load_weights',
    'read_checkpoint',
    'read_state_dict',
    'renamer',
]
