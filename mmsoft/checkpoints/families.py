"""The families of models whose weights are known: names, the authors' and ours, and what shapes tell."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mmsoft import models
from mmsoft.models import inline_archs

from . import inline_names, shapes, soft_names

Weights = Mapping[str, Tensor]
Translation = Callable[[Weights], dict[str, Tensor]]


class Family(NamedTuple):
    """One family; functions take the weights of a whole backbone or classifier.

    ``example``: names that tell it, the authors' and ours; ``options``: what shapes show of the constructor's options;
    ``unseen``: options that they do not show, and the defaults; ``head``: parts that only a classifier has.
    """

    title: str
    backbone: type[nn.Module]
    classifier: type[nn.Module]
    archs: Mapping[str, tuple]
    example: tuple[str, str]
    is_published: Callable[[Weights], bool]
    is_ours: Callable[[Weights], bool]
    to_ours: Translation
    to_published: Translation
    options: Callable[[Weights], dict[str, Any]]
    unseen: Mapping[str, Any]
    head: tuple[str, ...] = ('head',)


def _inline(
    title: str, archs: Mapping[str, tuple], names: inline_names.InLineNames, options: Callable, **unseen: Any
) -> Family:
    kind = title.replace('-', '')
    return Family(
        title,
        getattr(models, kind),
        getattr(models, f'{kind}Classifier'),
        archs,
        (names.published[-1], names.ours[-1]),
        names.is_published,
        names.is_ours,
        names.to_ours,
        names.to_published,
        options,
        unseen=dict(kernel='identity', **unseen),
    )


FAMILIES = (
    Family(
        'SOFT',
        models.SOFT,
        models.SOFTClassifier,
        models.ARCHS,
        ('pos_embed1', 'stages.0.embed.0.0.weight'),
        soft_names.is_published_soft,
        soft_names.is_our_soft,
        soft_names.convert_published_soft,
        soft_names.convert_to_published_soft,
        shapes.soft_options,
        unseen=dict(attn='soft_pp'),
        head=('cls_token', 'cls_position', 'head'),
    ),
    _inline('InLine-PVT', inline_archs.PVT_ARCHS, inline_names.INLINE_PVT, shapes.inline_pvt_options),
    _inline('InLine-Swin', inline_archs.SWIN_ARCHS, inline_names.INLINE_SWIN, shapes.inline_swin_options),
    _inline('InLine-DeiT', inline_archs.DEIT_ARCHS, inline_names.INLINE_DEIT, shapes.inline_deit_options),
    _inline(
        'InLine-CSwin', inline_archs.CSWIN_ARCHS, inline_names.INLINE_CSWIN, shapes.inline_cswin_options, window_size=7
    ),
)


def published_family(weights: Weights) -> Family | None:
    """The family whose authors call weights so."""
    return next((family for family in FAMILIES if family.is_published(weights)), None)


def our_family(weights: Weights) -> Family | None:
    """The family whose weights are called so here."""
    return next((family for family in FAMILIES if family.is_ours(weights)), None)


def with_our_names(weights: Weights) -> dict[str, Tensor]:
    """The authors' names translated; any others stay."""
    family = published_family(weights)
    return family.to_ours(weights) if family else dict(weights)
