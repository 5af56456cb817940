"""What the tools share."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path

PACKAGE = Path(__file__).parent.parent


def run_tool(main: Callable[[], None]) -> None:
    """Call ``main``; an error that the package itself raises is told in its own words, without a traceback."""
    try:
        main()
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        if PACKAGE not in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parents:
            raise
        sys.exit(f'error: {error}')
