"""What the tools share."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent
TOLD = (OSError, ValueError, RuntimeError, ImportError, TypeError)


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; an error that the package itself raises is told in its own words, without a traceback."""
    try:
        main()
    except TOLD as error:
        own = error
        while own is not None and not _is_ours(own):
            own = own.__context__  # MMEngine tells of an error in what it builds by another one
        if own is None:
            raise
        sys.exit(f'error: {own}')


def _is_ours(error: BaseException) -> bool:
    """Whether the package raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, TOLD) and PACKAGE in Path(frames[-1].filename).parents
