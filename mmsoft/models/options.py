"""Options of constructors: what all families take, and checks that say what there is."""

import difflib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import TypedDict


class CommonOptions(TypedDict, total=False):
    """Of every backbone; :class:`Backbone` says what they mean."""

    in_channels: int
    out_indices: Sequence[int]
    frozen_stages: int
    with_cp: bool
    recompute: bool | None
    drop_path_rate: float
    init_cfg: dict | list | None


class PyramidOptions(CommonOptions, total=False):
    """Of every backbone with stages."""

    img_size: int | tuple[int, int]


def reject_unknown(owner: type, given: Mapping[str, Any]) -> None:
    """Raise a TypeError that names the options of ``owner`` if any unknown ones were given."""
    options = options_of(owner)
    name = next((name for name in given if name not in options), None)
    if name is None:
        return
    close = difflib.get_close_matches(name, options, 1)
    hint = f' Did you mean {close[0]!r}?' if close else ''
    raise TypeError(f'{owner.__name__} has no option {name!r}.{hint} Its options are {", ".join(options)}.')


def options_of(owner: type) -> list[str]:
    """What a constructor takes by name, and what it passes on to that of its parent (``**options``)."""
    options = []
    for cls in owner.__mro__:
        if '__init__' in vars(cls):
            _, *parameters = inspect.signature(cls.__init__).parameters.values()
            options += [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return list(dict.fromkeys(options))


def reject_idle(owner: type, options: Mapping[str, Any], reason: str) -> None:
    """Raise a ValueError if one of ``options`` of ``owner`` is not at its default though nothing would read it."""
    parameters = inspect.signature(owner.__init__).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            raise ValueError(f'{owner.__name__}: {name}={value!r} would have no effect, as {reason}')
