"""From a trained softmax model to a linear one, without labels: copied, then taught by its teacher."""

from .copying import copy_weights, linear_options
from .live import linearize
from .reading import Reading, TeacherError
from .sources import read

__all__ = ['Reading', 'TeacherError', 'copy_weights', 'linear_options', 'linearize', 'read']
