"""Time and peak memory of backbones, whole models and attentions, side by side in one run."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .cases import GEMMS, check_case
from .launches import COUNTED
from .measure import Group, Options, Record, measure_group
from .plots import plot_report
from .report import make_report, markdown, write_data
from .suites import PEERS, SUITES, selection, sizes_of, with_gemm

__all__ = [
    'COUNTED',
    'GEMMS',
    'PEERS',
    'SUITES',
    'Group',
    'Options',
    'markdown',
    'run_benchmark',
    'selection',
    'sizes_of',
    'with_gemm',
]


def run_benchmark(
    name: str,
    groups: Sequence[Group],
    options: Options,
    peers: Sequence[str],
    say: Callable[[str], None],
    out: Path | None = None,
) -> dict[str, Any]:
    """Measure group after group; the report so far is in ``out`` after each, and after an interruption."""
    for case in dict.fromkeys(case for group in groups for case in group.cases):
        check_case(case)
    if out:
        out.mkdir(parents=True, exist_ok=True)  # it fails now or not after an hour
    records: list[Record] = []
    try:
        for number, group in enumerate(groups, start=1):
            say(f'group {number} of {len(groups)}: {group.name}, {len(group.cases)} cases')
            measure_group(group, options, records, say)
            if out:
                write_data(make_report(name, records, peers, options), out)
    except KeyboardInterrupt:
        say('interrupted: what was measured so far is reported')
    report = make_report(name, records, peers, options)
    if out:
        write_data(report, out)
        plot_report(report, out)
    return report
