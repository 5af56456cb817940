"""Registers the models with OpenMMLab; MMEngine imports this when a ``mmsoft.`` type is first built."""

from mmsoft.registry import MODELS

from .family import Family, for_each_family


def _register(family: Family) -> None:
    MODELS.register_module(module=family.backbone)
    MODELS.register_module(module=family.classifier)


for_each_family(_register)
