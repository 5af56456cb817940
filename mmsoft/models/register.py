"""Registers the models with OpenMMLab; MMEngine imports this when a ``mmsoft.`` type is first built."""

from mmsoft.registry import MODELS

from .classifier import SOFTClassifier
from .inline_cswin import InLineCSwin, InLineCSwinClassifier
from .inline_deit import InLineDeiT, InLineDeiTClassifier
from .inline_pvt import InLinePVT, InLinePVTClassifier
from .inline_swin import InLineSwin, InLineSwinClassifier
from .soft import SOFT

BACKBONES = (SOFT, InLinePVT, InLineSwin, InLineDeiT, InLineCSwin)
CLASSIFIERS = (
    SOFTClassifier,
    InLinePVTClassifier,
    InLineSwinClassifier,
    InLineDeiTClassifier,
    InLineCSwinClassifier,
)

for model in BACKBONES + CLASSIFIERS:
    MODELS.register_module(module=model)
