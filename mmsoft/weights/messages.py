"""How this room speaks: one kind of error, one way to report."""

import logging
import sys


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be found, read or written, or that does not fit the model."""


def announce(text: str, level: int = logging.INFO) -> None:
    """Into MMEngine's log where it is in use; to standard error otherwise."""
    if 'mmengine' in sys.modules:
        from mmengine.logging import print_log

        print_log(text, logger='current', level=level)
    else:
        print(text, file=sys.stderr)
