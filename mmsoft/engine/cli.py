"""What the tools share."""

import io
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from mmsoft.files import disk_is_full, shown

PACKAGE = Path(__file__).parent.parent
TOLD = (OSError, ValueError, RuntimeError, ImportError, TypeError)


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; an error of the package itself, or of a full disk, is told in its own words, with no traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')  # names of files hold what a terminal may not take
    try:
        main()
    except TOLD as error:
        chain = list(_chain(error))  # MMEngine tells of an error in what it builds by another one
        told = next((own for own in chain if _is_ours(own)), None) or next(filter(disk_is_full, chain), None)
        if told is None:
            raise
        sys.exit(shown(f'error: {told}', keep='\n'))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_ours(error: BaseException) -> bool:
    """Whether the package raised it; one that nobody raised has no frames."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, TOLD) and bool(frames) and PACKAGE in Path(frames[-1].filename).parents
