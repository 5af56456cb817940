"""Backbones and classifiers: a family a file, which ends in the record that tells the rest of the package of it."""

from mmsoft.versions import require

require('torch', 'torchvision')

from . import inline_cswin, inline_deit, inline_pvt, inline_swin, mila, ravlt, soft
from .archs import STRIDES, Arch, resolve_arch
from .attentions import ATTENTIONS, Attention, Place, register_attention
from .backbone import Backbone
from .checkpoint import Checkpoint
from .family import FAMILIES, Family, register_family
from .inline_archs import InLineArch
from .inline_cswin import *
from .inline_deit import *
from .inline_pvt import *
from .inline_swin import *
from .mila import *
from .options import CommonOptions, PyramidOptions
from .pyramid import NormedPyramid, Pyramid
from .ravlt import *
from .soft import *
from .stage import Stage

__all__ = [
    'ATTENTIONS',
    'FAMILIES',
    'STRIDES',
    'Arch',
    'Attention',
    'Backbone',
    'Checkpoint',
    'CommonOptions',
    'Family',
    'InLineArch',
    'NormedPyramid',
    'Place',
    'Pyramid',
    'PyramidOptions',
    'Stage',
    'register_attention',
    'register_family',
    'resolve_arch',
]

__all__ += soft.__all__
__all__ += inline_pvt.__all__
__all__ += inline_swin.__all__
__all__ += inline_deit.__all__
__all__ += inline_cswin.__all__
__all__ += mila.__all__
__all__ += ravlt.__all__

for _module in (soft, inline_pvt, inline_swin, inline_deit, inline_cswin, mila, ravlt):
    register_family(_module.FAMILY)
