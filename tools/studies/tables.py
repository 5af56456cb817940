"""Cells of tables."""

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float], digits: int = 1, unit: str = '') -> str:
    """The mean, and the deviation where there are several values."""
    deviation = f' ± {statistics.stdev(values):.{digits}f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.{digits}f}{deviation}{unit}'
