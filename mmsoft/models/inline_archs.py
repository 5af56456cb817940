"""Architectures of the InLine families: the one place that states widths, heads, depths and which layers are InLine."""

from collections.abc import Mapping
from typing import NamedTuple

from .archs import check_stages, resolve_arch


class InLineArch(NamedTuple):
    """As ``Arch``, and how many of the first layers of each stage are InLine; the rest are softmax attention."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    depths: tuple[int, ...]
    inline: tuple[int, ...]


def _arch(dim: int, heads: int, depths: tuple[int, ...], inline: tuple[int, ...]) -> InLineArch:
    """Widths and heads that double from stage to stage."""
    return InLineArch(tuple(dim * 2**i for i in range(4)), tuple(heads * 2**i for i in range(4)), depths, inline)


def _all_inline(dims: tuple[int, ...], heads: tuple[int, ...], depths: tuple[int, ...]) -> InLineArch:
    return InLineArch(dims, heads, depths, depths)


PVT_ARCHS = {
    name: _all_inline((64, 128, 320, 512), (2, 4, 10, 16), depths)
    for name, depths in dict(tiny=(2, 2, 2, 2), small=(3, 4, 6, 3), medium=(3, 4, 18, 3), large=(3, 8, 27, 3)).items()
}
SWIN_ARCHS = {
    'tiny': _arch(96, 3, (2, 2, 6, 2), (2, 2, 6, 0)),
    'small': _arch(96, 3, (2, 2, 18, 2), (2, 2, 0, 0)),
    'base': _arch(128, 4, (2, 2, 18, 2), (2, 2, 2, 0)),
}
DEIT_ARCHS = {
    'tiny': _all_inline((192,), (6,), (12,)),
    'small': _all_inline((320,), (10,), (12,)),
    'base': _all_inline((384,), (12,), (12,)),
}
DEIT_SIZES = {'tiny': 224, 'small': 288, 'base': 448}  # of the images that they are trained on
CSWIN_ARCHS = {
    'tiny': _arch(64, 2, (2, 4, 18, 1), (2, 4, 0, 0)),
    'small': _arch(64, 2, (3, 6, 29, 2), (3, 6, 0, 0)),
    'base': _arch(96, 4, (3, 6, 29, 2), (3, 6, 0, 0)),
}


def resolve_inline_arch(
    arch: str | Mapping | InLineArch, archs: Mapping[str, InLineArch], stages: int, mixed: bool
) -> InLineArch:
    """A name of ``archs``, or ``dict(dims=..., heads=..., depths=...)`` of an integer a stage.

    ``mixed`` families take a key ``inline`` as well, by default all layers of the first ``stages`` stages.
    """
    custom = arch._asdict() if isinstance(arch, InLineArch) else dict(arch) if isinstance(arch, Mapping) else arch
    inline = custom.pop('inline', None) if isinstance(custom, dict) else None
    base = resolve_arch(
        custom, archs, '; it may have a fourth, inline: how many layers of each stage are InLine' if mixed else ''
    )
    if isinstance(base, InLineArch):
        return base
    default = tuple(depth if i < stages else 0 for i, depth in enumerate(base.depths))
    if inline is None:
        return InLineArch(*base, default)
    check_stages('arch inline', inline, len(base.dims), least=0)
    inline = tuple(inline)
    if any(some > depth for some, depth in zip(inline, base.depths, strict=True)):
        raise ValueError(f'arch inline counts layers of depths {base.depths}; got {inline}')
    if not mixed and inline != default:
        raise ValueError(f'all layers of this family are InLine: leave arch inline out; got {inline}')
    return InLineArch(*base, inline)
