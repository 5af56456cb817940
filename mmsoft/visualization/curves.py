"""Curves from the scalars that MMEngine logs in ``vis_data/*.json``."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmsoft.files import shown

from .drawing import plain_text

Scalars = dict[str, tuple[list[int], list[float]]]
_Points = dict[str, dict[int, float]]
# In every row; they say where it belongs.
_PLACE = ('step', 'iter', 'epoch')
COLUMNS = 4


def read_scalars(path: str | Path) -> Scalars:
    """Scalars of a log or of a work directory: name -> (steps, values).

    Of several runs in a work directory, a later one replaces what earlier ones logged from its first
    step on, and all of it if it did not resume. A last line that a killed run did not finish is passed over.
    """
    training, validation = _read(path)
    points = {**validation, **training}  # training's time, where both log it
    return {name: (list(steps), list(steps.values())) for name, steps in points.items()}


def plot_curves(work_dirs: Sequence[str | Path], out: str | Path, keys: Sequence[str] | None = None) -> None:
    """Draw a panel for each key (by default: losses, lr, validation metrics) with a line for each work directory."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    logs = {str(path): _read(path) for path in work_dirs}
    keys = _choose(list(logs.values()), keys)
    columns = min(COLUMNS, len(keys))
    rows = -(-len(keys) // columns)
    figure = Figure(figsize=(4 * columns, 3 * rows), layout='constrained')
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for key, panel in zip(keys, panels, strict=False):
        for label, (training, validation) in logs.items():
            points, marker, unit = training.get(key), '', 'iteration'
            if points is None:
                points, marker = validation.get(key, {}), 'o'
                unit = _validation_unit(training, points)
            panel.plot(list(points), list(points.values()), marker=marker, markersize=3, label=plain_text(label))
            if points:
                panel.set(title=plain_text(key), xlabel=unit)
        panel.grid(alpha=0.3)
    for panel in panels:  # those left over
        panel.set_axis_off()
    if len(logs) > 1:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc='outside lower center')
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(out, dpi=110)


def curve_table(work_dirs: Sequence[str | Path], keys: Sequence[str] | None = None) -> str:
    """Last and best values, as text; by default of the loss and the validation metrics."""
    logs = {str(path): _read(path) for path in work_dirs}
    chosen = _choose(list(logs.values()), keys)
    if keys is None:
        chosen = [key for key in chosen if key == 'loss' or any(key in validation for _, validation in logs.values())]
    lines = []
    for label, (training, validation) in logs.items():
        lines += [shown(label), f'  {"":<28}{"last":>10}{"at step":>9}{"best":>10}{"at step":>9}']
        for key in chosen:
            points = training.get(key) or validation.get(key)
            if not points:
                continue
            last = max(points)
            numbers = {step: value for step, value in points.items() if value == value} or points  # NaN is not best
            best = (min if 'loss' in key else max)(numbers, key=numbers.get)
            lines.append(f'  {shown(key):<28}{points[last]:>10.4g}{last:>9}{points[best]:>10.4g}{best:>9}')
    return '\n'.join(lines)


def _choose(logs: Sequence[tuple[_Points, _Points]], keys: Sequence[str] | None) -> list[str]:
    """The wanted keys, each known to a log at least."""
    training = list(dict.fromkeys(key for log, _ in logs for key in log))
    validation = list(dict.fromkeys(key for _, log in logs for key in log))
    for key in keys or ():
        if key not in training and key not in validation:
            known = ', '.join(dict.fromkeys(training + validation))
            raise ValueError(f'--keys {key}: no log has it; they have {known}')
    losses = sorted((key for key in training if 'loss' in key), key=lambda key: key != 'loss')
    metrics = [key for key in validation if key not in training]
    return list(keys or [*losses, *(key for key in ('lr',) if key in training), *metrics])


def _validation_unit(training: _Points, points: dict[int, float]) -> str:
    """Loops by epoch count validations in epochs, others in iterations."""
    epochs = training.get('epoch')
    return 'epoch' if epochs and max(points, default=0) <= max(epochs.values()) else 'iteration'


def _read(path: str | Path) -> tuple[_Points, _Points]:
    """What training and what validation logged: name -> step -> value, steps in order."""
    training, validation = {}, {}
    for files in _runs(Path(path)):
        run = {}, {}
        for file in files:
            for row in _rows(file):
                of_training = 'lr' in row or 'loss' in row
                for name, value in row.items():
                    if isinstance(value, (int, float)) and (name not in _PLACE or (name == 'epoch' and of_training)):
                        run[not of_training].setdefault(name, {})[row['step']] = value
        if 'lr' in training and min(run[0].get('lr', [float('inf')])) <= min(training['lr']):
            training, validation = {}, {}  # not resumed: a new training in an old directory
        for whole, new in zip((training, validation), run, strict=True):
            for name, points in new.items():
                first = min(points)
                earlier = {step: value for step, value in whole.get(name, {}).items() if step < first}
                whole[name] = earlier | dict(sorted(points.items()))
    return training, validation


def _runs(path: Path) -> list[list[Path]]:
    """The logs of each run, in the order of their timestamps."""
    if path.is_file():
        return [[path]]
    if not path.is_dir():
        raise FileNotFoundError(f'{str(path)!r} is neither a log nor a work directory')
    folders = [path] if path.name == 'vis_data' else sorted([*path.glob('vis_data'), *path.glob('*/vis_data')])
    runs = [files for files in (sorted(folder.glob('*.json')) for folder in folders) if files]
    if not runs:
        raise FileNotFoundError(f'the work directory {str(path)!r} has no logs: no <time>/vis_data/*.json in it')
    return runs


def _rows(file: Path) -> Iterator[dict]:
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                return  # the run was killed while it wrote
            raise ValueError(f'{file}, line {number}: not a row of scalars in JSON ({error})') from error
        if not isinstance(row, dict) or 'step' not in row:
            raise ValueError(f'{file}, line {number}: a row of scalars is a dict with a step; got {line[:60]!r}')
        yield row
