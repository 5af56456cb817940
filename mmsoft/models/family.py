"""The one table of families: what the rest of the package knows of a network beyond its code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from mmsoft.weights import CheckpointError, Weights
from mmsoft.weights.sources import PAGES

Translation = Callable[[Weights], dict[str, Tensor]]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of networks: a backbone and a classifier whose state dicts have the same names except for the head's.

    Functions of weights take those of a whole backbone or classifier.

    Args:
        title: As people write it.
        backbone: Images to maps; ``backbone(arch, **options)``.
        classifier: Images to logits; ``num_classes`` is one of its options.
        archs: Architectures by name, the same as ``arch`` of the constructors takes.
        ours: Names that all of its weights have here; where they are another family's as well, give more of them. The
            last is shown.
        options: What shapes show of the constructors' options, ``arch`` among them.
        img_size: (height, width) of the images whose grids the position tables in weights have; None without tables.
        not_ours: Names that tell weights of another family with these names apart.
        unseen: Options that shapes do not show, and the defaults.
        head: First parts of the names that only a classifier has.
        published: Names that all weights of its authors have, the last of which is shown; none if there are none.
        page: Where its authors link their files.
        fits: Which of these fit which models, as in ``'Swin fits inline_swin_* of its size'``.
        to_ours: The authors' names and layouts -> ours; a name that is not known passes through, to be reported.
        to_published: Ours -> the authors'.
        prefixes: Before ``_<arch>`` in names of models, and the options that each means; by default the title.
        unlisted: Names of models that timm does not list.
        timm_cfg: What timm should know of an arch beyond the usual: ``first_conv``, ``input_size`` and so on.
        maps: ``out_indices`` of timm's feature extractors.
        leaves: Kinds of modules that look at sizes, and stay whole when torch.fx traces.
    """

    title: str
    backbone: type[nn.Module]
    classifier: type[nn.Module]
    archs: Mapping[str, Any]
    ours: tuple[str, ...]
    options: Callable[[Weights], dict[str, Any]]
    img_size: Callable[[Weights], tuple[int, int] | None] = lambda weights: None
    not_ours: tuple[str, ...] = ()
    unseen: Mapping[str, Any] = field(default_factory=dict)
    head: tuple[str, ...] = ('head',)
    published: tuple[str, ...] = ()
    page: str = ''
    fits: str = ''
    to_ours: Translation = dict
    to_published: Translation = dict
    prefixes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unlisted: frozenset[str] = frozenset()
    timm_cfg: Callable[[str], dict[str, Any]] = lambda arch: {}
    maps: int | tuple[int, ...] = (0, 1, 2, 3)
    leaves: tuple[type[nn.Module], ...] = ()

    @property
    def variants(self) -> dict[str, dict[str, Any]]:
        """Names of models -> options of the constructors."""
        prefixes = self.prefixes or {self.title.lower().replace('-', '_'): {}}
        return {
            f'{prefix}_{arch}': dict(arch=arch, **options)
            for prefix, options in prefixes.items()
            for arch in self.archs
        }

    @property
    def example(self) -> tuple[str, str]:
        """A name by which the authors' weights are known, and one of ours."""
        return self.published[-1] if self.published else '', self.ours[-1]

    def is_published(self, weights: Weights) -> bool:
        """Whether these are the authors' names (and not ours)."""
        return bool(self.published) and all(name in weights for name in self.published)

    def is_ours(self, weights: Weights) -> bool:
        """Whether these are our names of a backbone or classifier."""
        return all(name in weights for name in self.ours) and not any(name in weights for name in self.not_ours)


FAMILIES: dict[str, Family] = {}  # by title; the package's own are registered in __init__.py
Follower = Callable[[Family], Callable[[], None]]
_followers: list[Follower] = []


def register_family(family: Family) -> Family:
    """Make a family of your own known to timm, OpenMMLab's configs, the converter, get_flops and the benchmark."""
    if not isinstance(family, Family):
        raise TypeError(f'register_family takes a Family, the record that a module of models/ ends in; got {family!r}')
    if family.title in FAMILIES:
        raise ValueError(f'family {family.title!r} is registered already: choose another title')
    classes = {kind.__name__: other for other in FAMILIES.values() for kind in (other.backbone, other.classifier)}
    names = {name: other for other in FAMILIES.values() for name in other.variants}
    for name in (family.backbone.__name__, family.classifier.__name__, *family.variants):
        other = classes.get(name) or names.get(name)
        if other:
            raise ValueError(f'family {family.title!r}: {name} is a name of {other.title} already: choose another')
    if not family.ours:
        raise ValueError(f'family {family.title!r} needs `ours`, names by which its weights are known')
    for enter in [follow(family) for follow in _followers]:  # whoever refuses it does so before anyone has it
        enter()
    FAMILIES[family.title] = family
    if family.page:
        PAGES[family.title] = family.page, family.fits
    return family


def for_each_family(follow: Follower) -> None:
    """Enter every family that there is somewhere else, and at once each that is registered later.

    ``follow(family)`` raises if it cannot be entered, and returns what enters it.
    """
    for enter in [follow(family) for family in FAMILIES.values()]:
        enter()
    _followers.append(follow)


def family_of(model: nn.Module) -> Family | None:
    """The family of which this is a backbone or classifier."""
    return next(
        (family for family in FAMILIES.values() if isinstance(model, (family.backbone, family.classifier))), None
    )


def published_family(weights: Weights) -> Family | None:
    """The family whose authors call weights so."""
    return next((family for family in FAMILIES.values() if family.is_published(weights)), None)


def our_family(weights: Weights) -> Family | None:
    """The family whose weights are called so here; of several, the one with the most names in ``ours``."""
    found = sorted((f for f in FAMILIES.values() if f.is_ours(weights)), key=lambda family: len(family.ours))
    if len(found) > 1 and len(found[-1].ours) == len(found[-2].ours):
        raise CheckpointError(
            f'these weights have the names of {found[-2].title} and of {found[-1].title}: '
            'register the family of your own with more names in `ours`'
        )
    return found[-1] if found else None


def with_our_names(weights: Weights) -> dict[str, Tensor]:
    """The authors' names translated; any others stay."""
    family = published_family(weights)
    return family.to_ours(weights) if family else dict(weights)
