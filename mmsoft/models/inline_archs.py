"""Architectures of the InLine families: widths, heads, depths and which layers are InLine."""

from collections.abc import Mapping
from typing import NamedTuple

from .archs import check_stages, resolve_arch


class InLineArch(NamedTuple):
    """As ``Arch``, and how many of the first layers of each stage are InLine; the rest are softmax attention."""

    dims: tuple[int, ...]
    heads: tuple[int, ...]
    depths: tuple[int, ...]
    inline: tuple[int, ...]


def doubling(dim: int, heads: int, depths: tuple[int, ...], inline: tuple[int, ...]) -> InLineArch:
    """Widths and heads that double from stage to stage."""
    return InLineArch(tuple(dim * 2**i for i in range(4)), tuple(heads * 2**i for i in range(4)), depths, inline)


def all_inline(dims: tuple[int, ...], heads: tuple[int, ...], depths: tuple[int, ...]) -> InLineArch:
    """Without softmax layers."""
    return InLineArch(dims, heads, depths, depths)


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
