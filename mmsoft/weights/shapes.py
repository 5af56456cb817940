"""What the shapes of weights with our names tell, whatever family they are of."""

from collections.abc import Mapping

from torch import Tensor

Weights = Mapping[str, Tensor]
STAGES = range(4)


def image_size(weights: Weights, table: str, stride: int) -> tuple[int, int]:
    """(height, width) of the images whose grid this position table (1, h, w, C) has."""
    _, height, width, _ = weights[table].shape
    return stride * height, stride * width


def depths(weights: Weights) -> tuple[int, ...]:
    """Layers of the four stages."""
    return tuple(count_layers(weights, f'stages.{i}.blocks') for i in STAGES)


def count_layers(weights: Weights, prefix: str) -> int:
    """How many numbers follow ``prefix``."""
    place = prefix.count('.') + 1
    return len({name.split('.')[place] for name in weights if name.startswith(f'{prefix}.')})
