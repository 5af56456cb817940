"""What ``mmcv._ext`` offers, made from torch and torchvision.

An operator that is missing here raises when it is called, so that ``mmcv.ops`` imports whole.
"""

from collections.abc import Callable
from typing import Any

OPERATORS: dict[str, Callable] = {}


def __getattr__(name: str) -> Any:
    if name.startswith('__'):
        raise AttributeError(name)
    return OPERATORS.get(name) or _left_out(name)


def _left_out(name: str) -> Callable:
    def operator(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            f'mmcv operator {name!r} needs mmcv with its compiled operators, and this mmcv has none; '
            'mmsoft.mmcv_ops replaces those that configs of mmdet and mmseg use. Install a compiled mmcv '
            '(`MMCV_WITH_OPS=1 pip install --force-reinstall --no-deps --no-build-isolation onedl-mmcv`).'
        )

    return operator
