"""Backbones and classifiers."""

from mmsoft.versions import require

require('torch', 'torchvision')

from .archs import ARCHS, STRIDES, Arch
from .classifier import SOFTClassifier
from .soft import SOFT

__all__ = ['ARCHS', 'SOFT', 'STRIDES', 'Arch', 'SOFTClassifier']
