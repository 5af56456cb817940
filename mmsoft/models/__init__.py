"""Backbones and classifiers."""

from mmsoft.versions import require

require('torch', 'torchvision')

from .archs import ARCHS, STRIDES, Arch
from .classifier import SOFTClassifier
from .inline_archs import CSWIN_ARCHS, DEIT_ARCHS, DEIT_SIZES, PVT_ARCHS, SWIN_ARCHS, InLineArch
from .inline_cswin import InLineCSwin, InLineCSwinClassifier
from .inline_deit import InLineDeiT, InLineDeiTClassifier
from .inline_pvt import InLinePVT, InLinePVTClassifier
from .inline_swin import InLineSwin, InLineSwinClassifier
from .soft import SOFT

__all__ = [
    'ARCHS',
    'CSWIN_ARCHS',
    'DEIT_ARCHS',
    'DEIT_SIZES',
    'PVT_ARCHS',
    'SOFT',
    'STRIDES',
    'SWIN_ARCHS',
    'Arch',
    'InLineArch',
    'InLineCSwin',
    'InLineCSwinClassifier',
    'InLineDeiT',
    'InLineDeiTClassifier',
    'InLinePVT',
    'InLinePVTClassifier',
    'InLineSwin',
    'InLineSwinClassifier',
    'SOFTClassifier',
]
