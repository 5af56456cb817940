"""What the shapes of weights tell of the model that they belong to."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from mmsoft.models import ARCHS, SOFT, Arch, SOFTClassifier

from .messages import CheckpointError


class Architecture(NamedTuple):
    """Options that weights with our names show; ``num_classes`` is None for a backbone.

    ``attn``, 'soft' or 'soft_pp', is not among them: both have the same weights.
    """

    arch: Arch
    in_channels: int
    img_size: tuple[int, int]
    num_classes: int | None

    @property
    def name(self) -> str | None:
        """The name of a family's member, if it is one."""
        return next((name for name, arch in ARCHS.items() if arch == self.arch), None)

    def build(self, **options: Any) -> SOFT:
        """A classifier or backbone of this architecture; ``options`` replace what was read."""
        read = self._asdict()
        if self.num_classes is None:
            del read['num_classes']
        return (SOFT if self.num_classes is None else SOFTClassifier)(**read | options)

    def rows(self) -> list[tuple[str, str]]:
        """Labels and values, for a table."""
        height, width = self.img_size
        return [
            ('arch', self.name or 'of its own'),
            *((field, ' '.join(map(str, sizes))) for field, sizes in zip(Arch._fields, self.arch, strict=True)),
            ('image', f'{height} x {width}, {self.in_channels} channels'),
            ('classes', 'none' if self.num_classes is None else str(self.num_classes)),
        ]


def read_architecture(weights: Mapping[str, Tensor]) -> Architecture:
    """The architecture of a SOFT backbone (of all four stages) or classifier from its weights, with our names.

    Heads of stage 4 leave no trace; they are as wide as those of stage 3, as in the whole family.
    """
    try:
        tables = [weights[f'stages.{i}.position.table'].shape for i in range(4)]  # (1, h, w, C)
        dims = tuple(table[3] for table in tables)
        heads = tuple(weights[f'stages.{i}.blocks.0.attn.local'].shape[0] for i in range(3))
        return Architecture(
            arch=Arch(
                dims, (*heads, dims[3] * heads[2] // dims[2]), tuple(_count_blocks(weights, i) for i in range(4))
            ),
            in_channels=weights['stages.0.embed.0.0.weight'].shape[1],
            img_size=(4 * tables[0][1], 4 * tables[0][2]),
            num_classes=weights['head.weight'].shape[0] if 'head.weight' in weights else None,
        )
    except (KeyError, IndexError) as error:
        lacking = f'lack {error}' if isinstance(error, KeyError) else 'have tensors of other dimensions than those'
        raise CheckpointError(
            f'the weights {lacking}, from which the architecture of a SOFT backbone with four stages is read'
        ) from error


def _count_blocks(weights: Mapping[str, Tensor], stage: int) -> int:
    prefix = f'stages.{stage}.blocks.'
    return len({name.split('.')[3] for name in weights if name.startswith(prefix)})
