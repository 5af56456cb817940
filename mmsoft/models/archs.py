"""Architectures: widths, heads and depths, by name or by hand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

STRIDES = (4, 8, 16, 32)
# Softmax over a whole stage 4 under the linear rule: all tokens are keys up to a 1024 x 2048 image, averages beyond.
MAX_KEYS = 2048


class Arch(NamedTuple):
    """Widths, attention heads and layers of the four stages."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    depths: tuple[int, ...]


A = TypeVar('A', bound=tuple)


def resolve_arch(arch: str | Mapping | tuple, archs: Mapping[str, A], more: str = '') -> A | Arch:
    """A name of ``archs``, or ``dict(dims=..., heads=..., depths=...)`` of an integer a stage.

    ``more`` says in the message of an error which further keys the caller takes.
    """
    if isinstance(arch, str):
        if arch not in archs:
            raise ValueError(
                f'arch {arch!r} is unknown; choose one of {", ".join(archs)}, '
                'or give dict(dims=(...), heads=(...), depths=(...))'
            )
        return archs[arch]
    if isinstance(arch, Arch):
        arch = arch._asdict()
    if not isinstance(arch, Mapping) or set(arch) != set(Arch._fields):
        found = ', '.join(map(str, arch)) if isinstance(arch, Mapping) else repr(arch)
        raise ValueError(f'a custom arch is a dict with exactly the keys dims, heads and depths; got {found}{more}')
    stages = len(next(iter(archs.values()))[0])
    for name, values in arch.items():
        check_stages(f'arch {name}', values, stages)
    custom = Arch(*(tuple(arch[name]) for name in Arch._fields))
    for stage, (dim, heads) in enumerate(zip(custom.dims, custom.heads, strict=True), start=1):
        if dim % heads:
            raise ValueError(f'arch stage {stage}: dims ({dim}) must be a multiple of heads ({heads})')
    return custom


def check_stages(option: str, values: Any, stages: int, least: int = 1) -> None:
    """Raise a ValueError unless ``values`` are integers of at least ``least``, one a stage."""
    if (
        not isinstance(values, Sequence)
        or len(values) != stages
        or any(not isinstance(n, int) or n < least for n in values)
    ):
        kind = 'positive integers' if least else 'integers of 0 or more'
        raise ValueError(f'{option} must be {kind}, one for each stage ({stages}); got {values!r}')
