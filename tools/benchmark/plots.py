"""Plots of a benchmark's report: against tokens, ratios, shares of the machine's peak."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ('png', 'svg')
QUANTITIES = dict(seconds=('time', 'seconds'), peak_mib=('memory', 'peak memory added, MiB'))
MARKERS = 'osD^vP*X'
BAR = 0.32  # inches
LONGEST = 3.0  # of a bar of a ratio
Row = dict[str, Any]


def plot_report(report: dict[str, Any], folder: str | Path) -> list[Path]:
    """Write ``NAME_<what>.png`` and ``.svg`` of whatever the report has the data for."""
    written = []
    for task in dict.fromkeys(row['task'] for row in report['cases']):
        rows = [row for row in report['cases'] if row['task'] == task]
        for quantity, (what, unit) in QUANTITIES.items():
            lines = _lines(rows, quantity)
            if lines:
                fits = {fit['label']: fit[quantity] for fit in report['fits'] if fit['task'] == task}
                draw = _against_tokens(lines, fits, f'{task}: {unit}')
                written += _save(draw, (7, 4.5), folder, f'{report["name"]}_{task}_{what}')
    for quantity, (what, _) in QUANTITIES.items():
        bars = [(f'{row["label"]} / {row["to"]}', row['group'], row[quantity]) for row in report['ratios']]
        bars = [bar for bar in bars if bar[2] is not None]
        title = f'{what} ratio: below 1 is less' + f' (bars end at {LONGEST:g})' * any(bar[2] > LONGEST for bar in bars)
        written += _bars(bars, title, 1.0, '{:.2f}', folder, f'{report["name"]}_ratio_{what}')
    bars = [(row['label'], row['group'], row['gemm_share']) for row in report['cases'] if row['gemm_share']]
    title = 'share of the GEMM peak measured in the same run'
    return written + _bars(bars, title, None, '{:.0%}', folder, f'{report["name"]}_gemm_share')


def _lines(rows: Iterable[Row], quantity: str) -> dict[str, dict[int, float]]:
    """Label -> tokens -> value, of what has values at two sizes or more."""
    lines = {}
    for row in rows:
        if row[quantity] is not None and row[quantity] > 0:
            lines.setdefault(row['label'], {}).setdefault(row['tokens'], row[quantity])
    return {label: dict(sorted(points.items())) for label, points in lines.items() if len(points) > 1}


def _against_tokens(lines: dict[str, dict[int, float]], fits: dict[str, float | None], title: str) -> Callable:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    def draw(axes: 'Axes') -> None:
        for number, (label, points) in enumerate(lines.items()):
            slope = fits.get(label)
            legend = label if slope is None else f'{label}: slope {slope:.2f}'
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(list(points), list(points.values()), marker=marker, markersize=5, label=legend)
        axes.set(xscale='log', yscale='log')
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(StrMethodFormatter('{x:,g}'))
            axis.set_minor_formatter(NullFormatter())
        axes.set(xlabel='tokens (of an image: at stride 4)', title=title)
        axes.grid(alpha=0.3, which='both')
        axes.legend(fontsize=8)

    return draw


def _bars(
    bars: Sequence[tuple[str, str, float]], title: str, line: float | None, form: str, folder: str | Path, name: str
) -> list[Path]:
    """Horizontal bars (label, group, value), a colour a group."""
    if not bars:
        return []

    def draw(axes: 'Axes') -> None:
        groups = list(dict.fromkeys(group for _, group, _ in bars))
        for group_number, group in enumerate(groups):
            places = [place for place, bar in enumerate(bars) if bar[1] == group]
            values = [bars[place][2] for place in places]
            lengths = [min(value, LONGEST) for value in values]
            drawn = axes.barh(places, lengths, label=group, color=f'C{group_number % 10}')
            axes.bar_label(drawn, [form.format(value) for value in values], padding=3, fontsize=8)
        if line is not None:
            axes.axvline(line, color='black', linewidth=1)
        axes.set_yticks(range(len(bars)), [label for label, _, _ in bars], fontsize=8)
        axes.invert_yaxis()
        axes.margins(x=0.12, y=0.01)
        axes.set(title=title)
        axes.grid(alpha=0.3, axis='x')
        axes.set_axisbelow(True)
        axes.figure.legend(loc='outside lower center', ncols=3, fontsize=8)

    return _save(draw, (9, 1.6 + BAR * len(bars)), folder, name)


def _save(draw: Callable, size: tuple[float, float], folder: str | Path, name: str) -> list[Path]:
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout='constrained')
    FigureCanvasAgg(figure)
    draw(figure.subplots())
    paths = [Path(folder, f'{name}.{kind}') for kind in FORMATS]
    with rc_context({'svg.hashsalt': name}):  # the same report gives the same file
        for path in paths:
            figure.savefig(path, dpi=130, metadata={'Date': None} if path.suffix == '.svg' else None)
    return paths
