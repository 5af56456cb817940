"""Exported models without torch and OpenMMLab: ``load('model.onnx')('street.jpg')``.

Needs numpy, Pillow, and onnxruntime or OpenVINO; ``mmsoft export`` writes the files.
"""

from .model import Model, Result, load
from .pictures import PictureError, read_picture
from .runtimes import ModelFileError

__all__ = ['Model', 'ModelFileError', 'PictureError', 'Result', 'load', 'read_picture']
