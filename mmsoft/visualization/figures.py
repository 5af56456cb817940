"""Figures of what this room measures, for Matplotlib; each function gives one, ``save_figure`` writes it."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import cv2
import numpy as np

from mmsoft.weights.writing import whole_file

from .attention import AttentionMap
from .drawing import plain_text
from .fields import field_sides

FORMATS = ('png', 'svg')
PANEL = 2.3  # inches
LARGEST = 300  # pixels of a picture's side in a panel
LETTERS = 16  # of a legend, an inch
LANDMARK = dict(s=6, c='white', edgecolors='black', linewidths=0.5)
# Of the diagnosis: quantities of a panel, and whether its axis is logarithmic.
PANELS = (
    (('residual', 'attention', 'local', 'added', 'mlp'), 'root mean square', True),
    (('grad_q', 'grad_k', 'grad_landmarks', 'grad_v'), 'norm of the gradient', True),
    (('rank', 'landmarks'), 'rank of A', False),
    (('condition',), 'condition of A', True),
    (('newton_residual',), "Newton's residual", True),
    (('near_one', 'near_zero', 'entropy'), 'P > 0.99, P < 0.01, entropy of rows', False),
)


class Panels(NamedTuple):
    """A row of panels: one picture, as the model sees it, and the maps of one query."""

    title: str
    picture: np.ndarray  # (h, w, 3), RGB
    sides: tuple[int, int]  # of the model's input, which padding may make larger than the picture
    maps: Sequence[AttentionMap]


def _figure(rows: int, columns: int, panel: tuple[float, float] = (PANEL, PANEL)) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(panel[0] * columns, panel[1] * rows), layout='constrained')
    return figure, figure.subplots(rows, columns, squeeze=False)


def save_figure(figure: Any, out: str | Path, dpi: int = 100) -> list[Path]:
    """``<out>.png`` and ``<out>.svg``, equal for equal figures."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    paths = [Path(f'{out}.{kind}') for kind in FORMATS]
    with mpl.rc_context({'svg.hashsalt': 'mmsoft'}):
        for kind, path in zip(FORMATS, paths, strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(path) as partial:
                options = dict(metadata={'Date': None}) if kind == 'svg' else {}
                options['bbox_inches'] = 'tight'  # the layout does not always leave room for a title of several lines
                FigureCanvasAgg(figure).print_figure(partial, format=kind, dpi=dpi, **options)
    return paths


def attention_figure(rows: Sequence[Panels], head: int | None = None, landmarks: bool = True) -> Any:
    """A row of panels each: the picture with its query, then a map a layer, each scaled from its least to its most.

    Of one ``head``, from 1, or the mean of all. A line below tells what colours, points and the cross mean.
    """
    columns = 1 + max(len(row.maps) for row in rows)
    height, width = rows[0].picture.shape[:2]
    figure, axes = _figure(len(rows), columns, (PANEL * min(max(width / height, 0.6), 1.8), PANEL + 0.3))
    marks, heat = dict[str, Any](), cast(Any, None)
    for row, panels in zip(rows, axes, strict=True):
        for panel in panels:
            panel.set_axis_off()
        marks['query'] = _picture(panels[0], row)
        panels[0].set_title(_wrapped(row.title), fontsize=7)
        for found, panel in zip(row.maps, panels[1:], strict=False):
            _picture(panel, row, grey=True)
            heat = _heat(panel, row, found, found.head(head))
            if landmarks and len(found.landmarks):
                points = panel.scatter(*_points(row, found.landmarks), label='landmark', **LANDMARK)
                marks['landmark'] = points
    figure.legend(handles=list(marks.values()), loc='outside lower left', ncols=2, fontsize=8, frameon=False)
    colours = figure.colorbar(heat, ax=axes, location='bottom', shrink=0.5, aspect=60, pad=0.02, ticks=heat.get_clim())
    colours.ax.set_xticklabels(['least weight of a map', 'largest'], fontsize=8)
    return figure


def _wrapped(title: str, width: int = 40) -> str:  # the longest name of a shipped config has 38
    return '\n'.join(plain_text(line) for part in title.split('\n') for line in textwrap.wrap(part, width))


def _picture(panel: Any, row: Panels, grey: bool = False) -> Any:
    """The picture, and the cross of its query, which is given back."""
    height, width = row.picture.shape[:2]
    picture = cv2.resize(row.picture, _fitting(width, height), interpolation=cv2.INTER_AREA)
    if grey:
        picture = picture.mean(-1)
    panel.imshow(picture, extent=(0, width, height, 0), cmap='gray', vmin=0, vmax=255)
    x, y = row.maps[0].query
    style = dict(color='red', markersize=9, markeredgewidth=1.5, linestyle='none', label='query')
    (cross,) = panel.plot([x * width], [y * height], '+', **style)
    panel.set(xlim=(0, width), ylim=(height, 0))
    return cross


def _fitting(width: int, height: int) -> tuple[int, int]:
    """The sides of a picture that is no larger than a panel needs."""
    ratio = min(1.0, LARGEST / max(width, height))
    return max(1, round(width * ratio)), max(1, round(height * ratio))


def _heat(panel: Any, row: Panels, found: AttentionMap, weights: np.ndarray) -> Any:
    height, width = row.sides
    low, high = float(weights.min()), float(weights.max())
    limits = dict(vmin=low, vmax=max(high, low + 1e-12))
    heat = panel.imshow(weights, cmap='turbo', alpha=0.6, extent=(0, width, height, 0), **limits)
    panel.set(xlim=(0, row.picture.shape[1]), ylim=(row.picture.shape[0], 0))
    panel.set_title(f'{short_name(found.layer)}\nweights {low:.3g} to {high:.3g}', fontsize=8)
    return heat


def _points(row: Panels, points: np.ndarray) -> np.ndarray:
    """Landmarks in pixels (2, m); those that lie in the padding are left out by the panel's limits."""
    return (points * row.picture.shape[1::-1]).T


def short_name(layer: str) -> str:
    """``stage 3, layer 2`` for stages.2.blocks.1.attn; ``layer 5`` of a plain transformer."""
    numbers = [int(part) + 1 for part in layer.split('.') if part.isdigit()]
    return 'stage {}, layer {}'.format(*numbers) if len(numbers) == 2 else f'layer {numbers[0]}' if numbers else layer


def newton_figure(found: Mapping[str, Mapping[int, np.ndarray]]) -> Any:
    """A panel a stage, a line a model: means over matrices and pictures; the band holds all pictures' means."""
    stages = sorted({stage for of_model in found.values() for stage in of_model})
    figure, axes = _figure(1, len(stages), (3.4, 3.0))
    for stage, panel in zip(stages, axes[0], strict=True):
        for title, of_model in found.items():
            if stage in of_model:
                mean, low, high = newton_summary(of_model[stage])
                (line,) = panel.plot(mean, label=plain_text(title))
                band = dict(alpha=0.25, color=line.get_color(), label='range over pictures')
                panel.fill_between(range(len(mean)), low, high, **band)
        panel.set(title=f'stage {stage}', xlabel='Newton steps', ylim=(0, None))
        panel.grid(alpha=0.3)
    axes[0, 0].set_ylabel('error of the inverse X,\n|A X A - A| / |A|', fontsize=8)
    axes[0, 0].legend(fontsize=7)
    return figure


def newton_summary(residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of (pictures, matrices, steps + 1): the mean, the least and the largest mean of a picture, by step."""
    of_pictures = residuals.mean(1)
    return of_pictures.mean(0), of_pictures.min(0), of_pictures.max(0)


def spectrum_figure(values: Mapping[str, np.ndarray], rows: Sequence[Mapping[str, Any]]) -> Any:
    """Eigenvalues of A by layer, and norms of its inverse against the number of landmarks: means over heads."""
    layers = list(dict.fromkeys(row['layer'] for row in rows))
    figure, axes = _figure(1, 1 + len(layers), (3.4, 3.0))
    for layer in layers:
        eigenvalues = values[layer].mean(0)
        axes[0, 0].plot(eigenvalues.clip(1e-12), marker='.', markersize=3, label=short_name(layer))
    axes[0, 0].set(title='eigenvalues of A,\nmean over heads', xlabel='number, largest first', yscale='log')
    axes[0, 0].legend(fontsize=7)
    styles = dict(exact=('C0', '-'), exact_normalized=('C1', '-'), soft=('C0', '--'), soft_pp=('C1', '--'))
    names = dict(exact='A⁺', exact_normalized='D^-½ A⁺ D^-½')
    names |= dict(soft="A⁺ as SOFT's steps reach it", soft_pp="D^-½ A⁺ D^-½ as SOFT++'s steps do")
    for layer, panel in zip(layers, axes[0, 1:], strict=True):
        counts = sorted({row['landmarks'] for row in rows if row['layer'] == layer})
        for key, (colour, dashes) in styles.items():
            of_count = [[r[key] for r in rows if r['layer'] == layer and r['landmarks'] == m] for m in counts]
            means = [float(np.mean(norms)) for norms in of_count]
            panel.plot(counts, means, dashes, color=colour, marker='.', label=names[key])
        panel.set(title=f'norm of the inverse,\n{short_name(layer)}', xlabel='number of landmarks', yscale='log')
    _lines_below(figure, axes[0, ::-1])
    return figure


def field_figure(found: Mapping[str, Mapping[int, np.ndarray]]) -> Any:
    """A row a model, a panel a stage: the root of the field, which shows its borders."""
    columns = max(map(len, found.values()))
    figure, axes = _figure(len(found), columns, (PANEL, PANEL + 0.3))
    for (title, fields), panels in zip(found.items(), axes, strict=True):
        for panel in panels:
            panel.set_axis_off()
        for (stage, field), panel in zip(fields.items(), panels, strict=False):
            panel.imshow(np.sqrt(field / field.max()), cmap='magma')
            half = field_sides(field, (0.5,))[0.5]
            panel.set_title(
                f'{_wrapped(title)}\nstage {stage}: half of the\ngradient lies within {half:.0%} of the side',
                fontsize=7,
            )
    return figure


def feature_figure(pictures: Sequence[np.ndarray], found: Mapping[str, Mapping[int, Sequence[np.ndarray]]]) -> Any:
    """A row a picture (h, w, 3): it, then its features by model and stage."""
    columns = [(title, stage) for title, stages in found.items() for stage in stages]
    height, width = pictures[0].shape[:2]
    figure, axes = _figure(len(pictures), 1 + len(columns), (PANEL * min(max(width / height, 0.6), 1.8), PANEL))
    for number, (picture, panels) in enumerate(zip(pictures, axes, strict=True)):
        panels[0].imshow(cv2.resize(picture, _fitting(*picture.shape[1::-1]), interpolation=cv2.INTER_AREA))
        for (title, stage), panel in zip(columns, panels[1:], strict=True):
            panel.imshow(found[title][stage][number])
            panel.set_title(_wrapped(f'{title}\nstage {stage}') if not number else '', fontsize=7)
        for panel in panels:
            panel.set_axis_off()
    return figure


def injectivity_figure(found: Mapping[str, Mapping[str, Any]]) -> Any:
    """How weights move when queries become longer or shorter, and confusions by picture, most confused first."""
    figure, axes = _figure(1, 2, (4.5, 3.4))
    left, right = axes[0]
    for number, (title, model) in enumerate(found.items()):
        # lines that coincide stay visible: each is thinner than the one before
        style = dict(color=f'C{number}', linewidth=max(4 - number, 1), label=plain_text(title))
        left.plot(model['factors'], 100 * np.mean(model['scaled'], 0), marker='o', **style)
        confusions = sorted(model['confusions'], reverse=True)
        right.step(range(1, len(confusions) + 1), confusions, where='mid', **style)
    left.set(
        xlabel='query multiplied by',
        ylabel='change of its weights,\n% of what sets them apart from equal ones',
        xscale='log',
    )
    left.set_xticks(factors := model['factors'], [f'{factor:g}' for factor in factors])
    left.minorticks_off()
    right.set(xlabel='picture, most confused first', ylabel='pairs of queries\nwith the same weights')
    right.xaxis.get_major_locator().set_params(integer=True)
    right.set_yscale('symlog', linthresh=1)
    right.set_ylim(-0.1, max(1.0, right.get_ylim()[1]))
    _lines_below(figure, axes[0])
    return figure


def locality_figure(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """By layer, the share of weight in the 3 x 3 neighbourhood: with the local term, without it, of equal weights."""
    figure, axes = _figure(1, 1, (6.0, 3.4))
    panel = axes[0, 0]
    kinds = dict(
        near=('-', 'with the local term'), alone=('--', 'without it'), uniform=(':', 'if all weights were equal')
    )
    for number, (title, rows) in enumerate(found.items()):
        for key, (dashes, _) in kinds.items():
            shares = [100 * row[key] for row in rows]
            panel.plot(range(1, len(rows) + 1), shares, dashes, marker='.', color=f'C{number}')
        panel.plot([], [], color=f'C{number}', label=plain_text(title))
    for dashes, label in kinds.values():
        panel.plot([], [], dashes, color='black', label=label)
    panel.set(xlabel='layer', ylabel='weight in the 3 x 3\naround the query, %', ylim=(0, 100))
    _lines_below(figure, axes[0])
    return figure


def diagnosis_figure(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """Two rows of panels a model, a panel a group of quantities, by layer."""
    figure, axes = _figure(2 * len(found), len(PANELS) // 2, (3.2, 2.5))
    for (title, rows), panels in zip(found.items(), axes.reshape(len(found), -1), strict=True):
        for (keys, what, logarithmic), panel in zip(PANELS, panels, strict=True):
            for key in keys:
                points = [
                    (number, row[key])
                    for number, row in enumerate(rows, start=1)
                    if key in row and (row[key] or not logarithmic)
                ]
                if points:
                    panel.plot(*zip(*points, strict=True), marker='.', label=key)
            if logarithmic:
                panel.set_yscale('log')
            panel.set(title=_wrapped(f'{title}: {what}', 44), xlabel='layer')
            panel.title.set_fontsize(7)
            panel.grid(alpha=0.3)
            if panel.lines:
                panel.legend(fontsize=6)
            else:
                panel.set_axis_off()
    return figure


def _lines_below(figure: Any, axes: Sequence[Any]) -> None:
    for panel in axes:
        panel.grid(alpha=0.3)
    lines, labels = axes[0].get_legend_handles_labels()
    columns = int(figure.get_figwidth() * LETTERS / (max(map(len, labels)) + 8))  # the line before a label counts
    figure.legend(lines, labels, loc='outside lower center', ncols=min(max(columns, 1), 3), fontsize=8)
