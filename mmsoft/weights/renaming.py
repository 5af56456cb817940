"""Names by pairs of patterns, and position tables as lists of entries or as grids: what all translations share."""

import itertools
import math
import re
from collections.abc import Callable, Iterable

from torch import Tensor

from .messages import CheckpointError


def renamer(pairs: Iterable[tuple[str, str]]) -> Callable[[str], str]:
    """A function from old names to new ones; a name of no pair stays as it is.

    A pair holds the beginnings of names up to a point, with ``*`` for each number; the first that fits is taken.
    """
    rules = []
    for old, new in pairs:
        numbers = itertools.count(1)
        replacement = re.sub(r'\*', lambda _, numbers=numbers: rf'\{next(numbers)}', new)
        rules.append((re.compile(re.escape(old).replace(r'\*', r'(\d+)') + r'(?=\.|$)'), replacement))

    def rename(name: str) -> str:
        for pattern, replacement in rules:
            match = pattern.match(name)
            if match:
                return match.expand(replacement) + name[match.end() :]
        return name

    return rename


def split_table(name: str, table: Tensor) -> tuple[Tensor, Tensor | None]:
    """(1, n, C) -> the (1, s, s, C) grid, and the class token's entry (1, 1, C) if there is one."""
    if table.dim() != 3 or not table.numel():
        raise CheckpointError(f'{name} must have the shape (1, entries, channels); got {tuple(table.shape)}')
    count = table.shape[1]
    side = math.isqrt(count)
    if side * side == count:
        return table.unflatten(1, (side, side)), None
    side = math.isqrt(count - 1)
    if side * side == count - 1:
        return table[:, 1:].unflatten(1, (side, side)), table[:, :1]
    raise CheckpointError(f'{name} has {count} entries: neither a square grid nor one with a class token')


def flat_table(name: str, table: Tensor) -> Tensor:
    """(1, s, s, C) -> (1, s * s, C)."""
    if table.dim() != 4 or table.shape[1] != table.shape[2]:
        raise CheckpointError(
            f"the authors' layout holds square position tables only; {name} has the shape "
            f'{tuple(table.shape)}: load these weights into a model with a square img_size, which resizes it'
        )
    return table.flatten(1, 2)
