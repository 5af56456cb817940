"""Plots of the comparison of attentions: accuracy against throughput, and InLine's claims."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FORMATS = ('png', 'svg')


def plot_attention_study(
    scores: Mapping[str, Mapping[str, list[float]]],
    costs: Mapping[tuple[str, str], Mapping[str, Any]],
    claims: Mapping[str, Mapping[str, Any]],
    titles: Mapping[str, str],
    factors: Sequence[float],
    out: Path,
) -> list[Path]:
    """Write ``<out>.png`` and ``.svg``, and ``<out>_claims`` where claims were measured."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    written = []
    with mpl.rc_context({'svg.hashsalt': 'mmsoft', 'font.size': 9}):
        figure = Figure(figsize=(11, 4.2), layout='constrained')
        _scores(figure, scores, costs, titles)
        written += _save(figure, out)
        if claims:
            figure = Figure(figsize=(13, 3.8), layout='constrained')
            _claims(figure, claims, factors)
            written += _save(figure, out.with_name(f'{out.stem}_claims'))
    return written


def _scores(figure: Any, scores: Mapping[str, Any], costs: Mapping[Any, Any], titles: Mapping[str, str]) -> None:
    """Top-1 against inference throughput, AP against the time of a large image; bars are deviations over seeds."""
    from matplotlib.ticker import LogLocator

    panels = (
        ('classification', 'forward', 'images a second, inference at 224²', 'top-1, %'),
        ('detection', 'dense', 'seconds a forward pass at 800 x 1344', 'box AP'),
    )
    for axes, (task, what, x_label, y_label) in zip(figure.subplots(1, 2), panels, strict=True):
        for number, (name, found) in enumerate(scores.items()):
            cost, values = costs[name, what], found[task]
            if not cost['seconds'] or not values:
                continue
            seconds = cost['seconds']
            x = cost['batch'] / seconds if what == 'forward' else seconds
            deviation = statistics.stdev(values) if len(values) > 1 else 0
            axes.errorbar(
                x, statistics.mean(values), deviation, marker='osD^vP*Xh'[number % 9], capsize=3, label=titles[name]
            )
        axes.set(xlabel=x_label, ylabel=y_label, xscale='log')
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axes.xaxis.set_major_formatter('{x:g}')
        axes.xaxis.set_minor_formatter('')
        axes.grid(alpha=0.3)
    figure.legend(*axes.get_legend_handles_labels(), loc='outside lower center', ncols=5)


def _claims(figure: Any, claims: Mapping[str, Any], factors: Sequence[float]) -> None:
    """How weights move when a query becomes longer or shorter, confusions by picture, and the weight around a query."""
    left, middle, right = figure.subplots(1, 3)
    for number, (label, found) in enumerate(claims.items()):
        # lines that coincide stay visible: each is thinner than the one before
        style = dict(marker='osD^'[number % 4], color=f'C{number}', markersize=9 - 2 * number, linewidth=4 - number)
        left.plot(factors, [100 * value for value in found['scaled']], label=label, **style)
        confusions = sorted(found['confusions'], reverse=True)
        middle.step(range(1, len(confusions) + 1), confusions, where='mid', color=f'C{number}', linewidth=4 - number)
        layers = range(1, len(found['near']) + 1)
        right.plot(layers, [100 * share for share in found['near']], **style)
        if found['near_alone'] != found['near']:
            alone = [100 * share for share in found['near_alone']]
            right.plot(layers, alone, '--', color=f'C{number}', linewidth=1, label=f'{label}, no local term')
            start = [100 * share for share in found['near_start']]
            right.plot(layers, start, ':', color=f'C{number}', linewidth=1, label=f'{label}, before training')
    left.set(xlabel='query times', ylabel='weights move by, % of their deviation', xscale='log', xticks=list(factors))
    left.set_xticklabels([f'{factor:g}' for factor in factors])
    left.minorticks_off()
    middle.set(xlabel='pictures, most confused first', ylabel='confused pairs of queries in a picture')
    middle.set_yscale('symlog', linthresh=1)
    middle.set_ylim(bottom=-0.1)
    right.set(xlabel='layer', ylabel='weight in the 3 x 3 neighbourhood, %', xticks=list(layers))
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    parts = [axes.get_legend_handles_labels() for axes in (left, right)]
    handles, labels = ([entry for part in parts for entry in part[i]] for i in (0, 1))
    figure.legend(handles, labels, loc='outside lower center', ncols=3)


def _save(figure: Any, out: Path) -> list[Path]:
    paths = [out.with_suffix(f'.{kind}') for kind in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=120, metadata={'Date': None} if path.suffix == '.svg' else None)
    return paths
