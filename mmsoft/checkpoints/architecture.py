"""What weights tell of the model that they belong to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from mmsoft.models.family import FAMILIES, Family, our_family
from mmsoft.weights import CheckpointError


class Architecture(NamedTuple):
    """Options of the constructor that weights with our names show; ``num_classes`` is None for a backbone."""

    family: Family
    options: dict[str, Any]
    num_classes: int | None

    @property
    def arch(self) -> Any:
        return self.options['arch']

    @property
    def name(self) -> str | None:
        """The name of a family's member, if it is one."""
        return next((name for name, arch in self.family.archs.items() if arch == self.arch), None)

    def build(self, **options: Any) -> nn.Module:
        """A classifier or backbone of this architecture; ``options`` replace what was read."""
        if self.num_classes is None:
            return self.family.backbone(**self.options | options)
        return self.family.classifier(**self.options | dict(num_classes=self.num_classes) | options)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, for a table."""
        kind = 'a backbone' if self.num_classes is None else 'a classifier'
        unseen = ' and '.join(f'{option} ({default!r} unless given)' for option, default in self.family.unseen.items())
        rows = [
            ('model', f'{kind}, {self.family.title}; of its options {unseen} leave no trace'),
            ('arch', self.name or 'of its own'),
        ]
        for name, value in {**self.arch._asdict(), **self.options}.items():
            if name != 'arch':
                rows.append((name, ' '.join(map(str, value)) if isinstance(value, tuple) else str(value)))
        return [*rows, ('classes', 'none' if self.num_classes is None else str(self.num_classes))]


def read_architecture(weights: Mapping[str, Tensor]) -> Architecture:
    """The architecture of a backbone (of all its stages) or classifier from its weights, with our names."""
    family = our_family(weights)
    if family is None:
        known = ', '.join(f'{family.title} ({family.example[1]}, ...)' for family in FAMILIES.values())
        raise CheckpointError(f'these are not the weights, with our names, of any known model: {known}')
    try:
        options = family.options(weights)
        num_classes = weights['head.weight'].shape[0] if 'head.weight' in weights else None
    except (KeyError, IndexError, ValueError, ZeroDivisionError) as error:
        lacking = f'lack {error}' if isinstance(error, KeyError) else 'have tensors of other dimensions than those'
        raise CheckpointError(
            f'the weights {lacking}, from which the architecture of a whole {family.title} backbone is read'
        ) from error
    return Architecture(family, options, num_classes)
