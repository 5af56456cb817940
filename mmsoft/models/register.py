"""Registers the models with OpenMMLab; MMEngine imports this when a ``mmsoft.`` type is first built."""

from collections.abc import Callable

from mmsoft.registry import MODELS

from .family import Family, for_each_family


def _follow(family: Family) -> Callable[[], None]:
    kinds = (family.backbone, family.classifier)
    for kind in kinds:
        if kind.__name__ in MODELS.module_dict:
            raise ValueError(f"family {family.title!r}: OpenMMLab's registry has a {kind.__name__} already: rename it")

    def enter() -> None:
        for kind in kinds:
            MODELS.register_module(module=kind)

    return enter


for_each_family(_follow)
