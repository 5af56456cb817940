"""The report of a run of ``tools/linearize.py``."""

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS
from torch import Tensor, nn

from mmsoft.checkpoints import read_state_dict
from mmsoft.engine.config import check_data
from mmsoft.engine.predictor import Predictor
from mmsoft.engine.tasks import CLASSIFICATION, task_of
from mmsoft.engine.training import evaluate

from .libraries import for_any_size
from .linearizing import Linear, Source
from .pictures import find_pictures
from .reading import TeacherError, load_whole
from .report import (
    LEAST_SCORE,
    SIZES,
    agreement,
    batches_of,
    costs,
    errors_before_and_after,
    pictures_for,
    write_report,
)

COUNT = 50  # pictures


def report_run(
    source: Source,
    linear: Linear,
    written: Mapping[str, Path],
    places: Sequence[str],
    checkpoint: str | None,
    *,
    count: int = COUNT,
    sizes: Sequence[tuple[int, int]] = SIZES,
    labels: bool = False,
    trust: bool = False,
    where: str = '',
) -> list[Path]:
    """Compare the copy and the linear model with the teacher, on ``count`` pictures; where the report is.

    ``labels``: the metrics of the config's test set as well. ``where``: what the report says of the pictures.
    """
    out, device = written['linear'].parent, 'cuda:0' if torch.cuda.is_available() else 'cpu'
    files = pictures_for(places, count)
    batches = batches_of(linear.cfg, files, count)
    if not batches:
        raise TeacherError(f'none of the {len(files)} pictures for the report can be read, such as {files[0]!r}')
    teacher = source.module.to(device)
    models = {name: _module(linear, written[name]).to(device) for name in ('copy', 'linear')}
    images = [image.to(device) for image, _ in batches]
    errors = errors_before_and_after(teacher, linear.reading, linear.copy.attentions, models, images)
    agree = {}
    if not linear.new_head:
        agree = _agreements(source, linear, written, teacher, models, batches, str(checkpoint), trust)
    content = dict(
        teacher=linear.reading.title,
        summary=_summary(agree, errors, linear.new_head),
        notes=linear.reading.notes,
        weights={outcome: len(names) for outcome, names in linear.copy.names.items()},
        linear_attentions=linear.copy.attentions,
        pictures=len(batches),
        pictures_from=where,
        errors=errors,
        agreement=agree,
        metrics=_metrics(source, linear, written, str(checkpoint), out, trust) if labels else {},
        cost=costs(dict(teacher=for_any_size(teacher), linear=models['linear']), sizes),
        device=torch.cuda.get_device_name() if device != 'cpu' else f'a CPU, {torch.get_num_threads()} threads',
    )
    return write_report(out, content)


def _agreements(
    source: Source,
    linear: Linear,
    written: Mapping[str, Path],
    teacher: nn.Module,
    models: Mapping[str, nn.Module],
    batches: Sequence[tuple[Tensor, str]],
    checkpoint: str,
    trust: bool,
) -> dict[str, dict[str, float]]:
    """Of each model's predictions with the teacher's."""
    task, files = task_of(linear.cfg), [file for _, file in batches]
    if task is CLASSIFICATION:
        device = next(teacher.parameters()).device
        with torch.no_grad():
            found = {
                name: [model(image.to(device))[0] for image, _ in batches]
                for name, model in (*models.items(), ('teacher', teacher))
            }
    else:
        found = {name: _samples(written[name], linear.cfg, files, trust) for name in models}
        found['teacher'] = _samples(checkpoint, source.cfg, files, trust)
    agree = {name: agreement(task, found['teacher'], found[name]) for name in models}
    return {name: row for name, row in agree.items() if row}


def report_places(source: Source, cfg: Config, images: Sequence[str] | None) -> tuple[list[str], str]:
    """Pictures for the report where none are asked for, and what they are: such that were not learned from, if any.

    ``images``: where the pictures to learn from are; by default the source's.
    """
    learned = list(images or source.places(cfg))
    known = set(find_pictures(_resolved(learned)))
    for part in ('val', 'test') if source.cfg else ():  # of another config, nobody has named the data
        places = _resolved(source.places(cfg, part))
        kept = [file for file in find_pictures(places) if file not in known] if all(map(_is_there, places)) else []
        if kept:
            return kept, f' of the part {part!r} of the data, which are not learned from'
    return learned, ' among those to learn from, for no others are known (--report-images gives them)'


def _resolved(places: Sequence[str]) -> list[str]:
    return [str(Path(place).expanduser().resolve()) for place in places]


def _is_there(place: str) -> bool:
    return Path(place).exists()


def check_report(
    source: Source, linear: Linear, asked: Sequence[str] | None, images: Sequence[str] | None, labels: bool
) -> None:
    """Raise for what a report cannot be made of; ``asked`` and ``images`` are pictures for it, and to learn from."""
    if asked:
        find_pictures(asked, '--report-images')
    else:
        report_places(source, linear.cfg, images)
    if not labels:
        return
    metrics = source.cfg.get('test_evaluator') if source.cfg else None
    metrics = metrics if isinstance(metrics, (list, tuple)) else [metrics]
    has_metrics = all(metric and not metric.get('format_only') for metric in metrics)
    if source.cfg is None or not source.cfg.get('test_dataloader') or not has_metrics:
        raise TeacherError(
            '--labels asks for a config with a labelled test set, which this teacher has not: leave --labels out, and '
            'run test.py on linear.py with a test set'
        )
    check_data(copy.deepcopy(linear.cfg), 'test')


def _module(linear: Linear, path: Path) -> nn.Module:
    model = MODELS.build(dict(linear.backbone))
    weights = read_state_dict(str(path))
    load_whole(model, linear.part_of(weights), str(path))
    return model.eval()


def _samples(checkpoint: str | Path, cfg: Config, files: Sequence[str], trust: bool) -> list[Any]:
    """What a model predicts for each picture."""
    return [found.sample for found in Predictor(checkpoint, copy.deepcopy(cfg), trust=trust).stream(files)]


def _summary(
    agree: Mapping[str, Mapping[str, float]], errors: Mapping[str, Mapping[str, float]], new_head: bool = False
) -> str:
    maps = {name: [value for part, value in row.items() if part.startswith('map')] for name, row in errors.items()}
    wrong = {name: sum(values) / len(values) for name, values in maps.items()}
    lines = [
        f"Of the power of the teacher's maps {wrong['linear']:.1%} is wrong; after copying alone {wrong['copy']:.1%}."
    ]
    if 'linear' in agree:
        key, value = next(reversed(agree['linear'].items()))
        lines.append(
            f"{key} against the teacher's predictions is {value:.1f}; after copying alone {agree['copy'][key]:.1f}."
        )
    elif new_head:
        lines.append('Predictions cannot be compared: the head is new.')
    else:
        lines.append(
            f'Agreement of boxes is not known: no detection of the teacher has a score of {LEAST_SCORE} or more on '
            'these pictures. --report-images takes others.'
        )
    return ' '.join(lines)


def _metrics(
    source: Source, linear: Linear, written: Mapping[str, Path], checkpoint: str, out: Path, trust: bool
) -> dict[str, dict[str, float]]:
    """Of the test set, by ``test.py``'s own way."""
    tested = {'teacher': (source.cfg, checkpoint)} | {
        name: (linear.cfg, str(written[name])) for name in ('copy', 'linear')
    }
    found = {}
    for name, (cfg, weights) in tested.items():
        values = evaluate(copy.deepcopy(cfg), weights, work_dir=str(out / f'test_{name}'), trust_checkpoint=trust)
        # classes have a table in the log
        found[name] = {
            key: float(v) for key, v in values.items() if math.isfinite(v) and not key.endswith('_precision')
        }
    return found
