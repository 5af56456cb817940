"""Memory of this process, as the system counts it."""

import math
import sys
from pathlib import Path

STATUS = Path('/proc/self/status')


def peak_memory() -> float:
    """MiB that it held at most; Windows does not tell.

    On Linux ``resource`` would count the process that started this one as well: its peak is handed on.
    """
    if STATUS.is_file():
        return of_linux('VmHWM')
    try:
        import resource
    except ImportError:
        return math.nan
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == 'darwin' else 1024)


def of_linux(key: str) -> float:
    """MiB of an entry such as VmRSS, what is held now; an OSError on other systems."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024
