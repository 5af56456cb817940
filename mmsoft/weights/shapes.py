"""What the shapes of weights with our names tell, whatever family they are of."""

from collections.abc import Mapping

from torch import Tensor

Weights = Mapping[str, Tensor]
STAGES = range(4)


def image_size(weights: Weights) -> tuple[int, int] | None:
    """(height, width) of the images whose grids the position tables have; None where there are none.

    The first table, (1, h, w, C), is at stride 4 in a pyramid, where others follow it, and at 16 in a plain network.
    """
    table = weights.get('stages.0.position.table', weights.get('position.table'))
    if table is None:
        return None
    stride = 4 if 'stages.1.position.table' in weights else 16
    return stride * table.shape[1], stride * table.shape[2]


def depths(weights: Weights) -> tuple[int, ...]:
    """Layers of the four stages."""
    return tuple(count_layers(weights, f'stages.{i}.blocks') for i in STAGES)


def count_layers(weights: Weights, prefix: str) -> int:
    """How many numbers follow ``prefix``."""
    place = prefix.count('.') + 1
    return len({name.split('.')[place] for name in weights if name.startswith(f'{prefix}.')})
