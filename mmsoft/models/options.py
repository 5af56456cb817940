"""Checks of option names: a misspelt one says what there is."""

import difflib
import inspect
from collections.abc import Mapping
from typing import Any


def reject_unknown(owner: type, unknown: dict[str, Any]) -> None:
    """Raise a TypeError that names the options of ``owner`` if any unknown ones were given."""
    if not unknown:
        return
    options = []
    for cls in owner.__mro__:
        for name, parameter in inspect.signature(cls.__init__).parameters.items() if cls is not object else ():
            if name != 'self' and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                options.append(name)
        sinks = [p.name for p in inspect.signature(cls.__init__).parameters.values() if p.kind is p.VAR_KEYWORD]
        if sinks != ['options']:  # only **options goes on to the parent class; **unknown ends here
            break
    options = list(dict.fromkeys(options))
    name = next(iter(unknown))
    close = difflib.get_close_matches(name, options, 1)
    hint = f' Did you mean {close[0]!r}?' if close else ''
    raise TypeError(f'{owner.__name__} has no option {name!r}.{hint} Its options are {", ".join(options)}.')


def reject_idle(owner: type, options: Mapping[str, Any], reason: str) -> None:
    """Raise a ValueError if one of ``options`` of ``owner`` is not at its default though nothing would read it."""
    parameters = inspect.signature(owner.__init__).parameters
    for name, value in options.items():
        if value != parameters[name].default:
            raise ValueError(f'{owner.__name__}: {name}={value!r} would have no effect, as {reason}')
