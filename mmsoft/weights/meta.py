"""What a checkpoint says of its run: the entries that a resumed run may see."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from .messages import CheckpointError

# MMEngine would run ``config`` as code and looks at no other entry than these; ``mmsoft`` is our own.
KNOWN = dict(
    epoch=int,
    iter=int,
    seed=(int, type(None)),
    experiment_name=str,
    time=str,
    mmengine_version=str,
    versions=dict,
    dataset_meta=dict,
    hook_msgs=(dict, type(None)),
    mmsoft=dict,
)
MOST = 10**9  # iterations
_PLAIN = (str, bytes, bool, int, float, type(None))


def known_meta(meta: Any) -> dict[str, Any]:
    """The known entries of a checkpoint's ``meta``; raise where one is lacking or no plain value."""
    if not isinstance(meta, Mapping):
        raise CheckpointError(f'this checkpoint cannot be resumed: its meta is a {type(meta).__name__}, not a dict')
    for name in ('epoch', 'iter'):
        if name not in meta:
            raise CheckpointError(
                f'this checkpoint cannot be resumed: its meta has no {name}; '
                'start from its weights with --cfg-options load_from=<file>'
            )
    for name, kind in KNOWN.items():
        if name in meta and not (isinstance(meta[name], kind) and is_plain(meta[name])):  # pyright: ignore[reportArgumentType]
            raise CheckpointError(
                f'this checkpoint cannot be resumed: its meta.{name} is not made of plain values '
                f'(a {type(meta[name]).__name__}); start from its weights with --cfg-options load_from=<file>'
            )
    for name in ('epoch', 'iter'):
        if not 0 <= meta[name] < MOST:
            raise CheckpointError(
                f'this checkpoint cannot be resumed: its meta.{name} must be between 0 and {MOST}, and is not'
            )
    return {name: meta[name] for name in KNOWN if name in meta}


def dataset_meta(meta: Any) -> dict[str, Any]:
    """What ``meta`` says of the data: ``classes``, ``palette`` and so on.

    Older MMEngine writes names in capitals; mmdet 2 and mmseg 0 put them into ``meta`` itself.
    """
    meta = meta if isinstance(meta, Mapping) else {}
    saved = meta.get('dataset_meta')
    if not isinstance(saved, Mapping):
        saved = {name: meta[name] for name in ('CLASSES', 'PALETTE') if name in meta}
    return {str(name).lower(): value for name, value in saved.items()}


def is_plain(value: Any) -> bool:
    """Whether a value consists of strings, numbers and containers of them; it may hold itself, or one part often."""
    pending, seen = [value], {}
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if type(value) is dict:
            pending += [*value, *value.values()]
        elif type(value) in (list, tuple):
            pending += value
        elif isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.hasobject:
                return False
        elif type(value) not in _PLAIN:
            return False
    return True
