"""Checks of inputs and options, and precision rules, that operators, layers and models share."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def check(condition: bool, message: str, **tensors: Tensor) -> None:
    """Raise a ValueError that states ``message`` and the shape and dtype of every tensor."""
    if not condition:
        found = ', '.join(f'{name} {tuple(t.shape)} {t.dtype}' for name, t in tensors.items())
        raise ValueError(f'{message}; got {found}')


def whole(option: str, value: Any, least: int = 1) -> int:
    """``value`` if it is an integer of at least ``least``; otherwise a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f'{option} must be an integer of at least {least}; got {value!r}')
    return value


def flag(option: str, value: Any) -> bool:
    """``value`` if it is True or False; otherwise a ValueError that names it."""
    if not isinstance(value, bool):
        raise ValueError(f'{option} must be True or False; got {value!r}')
    return value


def positive(option: str, value: Any) -> float:
    """``value`` if it is a number above 0; otherwise a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ValueError(f'{option} must be a number above 0; got {value!r}')
    return value


def pair(option: str, value: Any) -> tuple[int, int]:
    """Rows and columns from such a pair or from one number for both."""
    rows, columns = value if isinstance(value, (tuple, list)) and len(value) == 2 else (value, value)
    return whole(option, rows), whole(option, columns)


def choose(option: str, value: Any, choices: Iterable[Any]) -> Any:
    """``value`` if it is among ``choices``; otherwise a ValueError that lists them."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(
            f'{option} {value!r} is unknown; choose one of {", ".join(str(c) or repr(c) for c in choices)}'
        )
    return value


def compute_dtype(*tensors: Tensor) -> torch.dtype:
    """Half precision is accumulated in float32; float32 and float64 stay as they are."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def saturating_cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast to ``dtype``; what float16 cannot hold becomes its largest value, not infinity."""
    if dtype == torch.float16 and x.dtype != dtype:
        x = x.clamp(-65504.0, 65504.0)
    return x.to(dtype)
