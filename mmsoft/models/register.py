"""Registers the models with OpenMMLab; MMEngine imports this when a ``mmsoft.`` type is first built."""

from mmsoft.registry import MODELS

from .classifier import SOFTClassifier
from .soft import SOFT

for model in (SOFT, SOFTClassifier):
    MODELS.register_module(module=model)
