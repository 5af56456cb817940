"""Attentions compared in one small pyramid: the paper's Table 2 on the demo's worlds, with costs measured here.

Every attention trains from the same seeds on the same pictures for the same number of steps, as a classifier and in
a RetinaNet; only ``attn`` differs.
"""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmark.cases import Case
from benchmark.measure import Group, Options, Record, measure_group
from benchmark.pyramid import ARCH, attention_at
from benchmark.report import make_report
from mmengine.config import Config
from mmengine.registry import MODELS

import mmsoft
from mmsoft.engine import demo
from mmsoft.engine.config import load_config
from mmsoft.engine.predict import load_model
from mmsoft.engine.training import TOP1, evaluate
from mmsoft.models import ATTENTIONS
from mmsoft.visualization.claims import FACTORS

from .claims import measure_claims, merge_claims
from .once import once, train_once
from .plots import plot_attention_study
from .tables import spread

TASKS = dict(classification=TOP1, detection='coco/bbox_mAP')
TITLES = {name: row.title for name, row in ATTENTIONS.items()}
TITLES |= dict(softmax_reduced="softmax, PVT's spatial reduction", linear='linear, ReLU')
NECK = 64  # channels of the neck and heads: the pyramid is what is compared
EPOCHS = dict(classification=2, detection=4)
COST_SIZE, BATCH = (224, 224), 8
DENSE = (800, 1344)
CLAIMS_OF = ('softmax', 'linear', 'inline')
Result = dict[str, Any]


def study(
    work_dir: str | Path,
    seeds: Sequence[int],
    names: Sequence[str],
    options: Options,
    say: Callable[[str], None],
    jobs: int = 2,
) -> Result:
    """Train, test and measure what is not done yet below ``work_dir``; everything found.

    ``jobs`` trainings run at a time, each in a process of its own with one thread.
    """
    if len(set(names)) < len(names) or not set(names) <= set(TITLES):
        raise ValueError(f'attentions must be different ones of {", ".join(TITLES)}; got {", ".join(names)}')
    work_dir = Path(work_dir)
    runs = [(name, task, seed, str(work_dir)) for seed in seeds for task in TASKS for name in names]
    scores = {name: {task: [] for task in TASKS} for name in names}
    claimed: dict[str, list[Result]] = {}
    os.environ.setdefault('MMSOFT_DEMO_DATA', str(work_dir / 'data'))
    for task in TASKS:
        demo.overlay(config_of(names[0], task))  # draws the world before several ask for it
    threads = ThreadPoolExecutor(jobs)
    try:
        for (name, task, seed, _), (score, claims) in zip(runs, threads.map(_run_apart, runs), strict=True):
            say(f'{TITLES[name]}, {task}, seed {seed}: {score:.1f}')
            scores[name][task].append(score)
            if claims:
                claimed.setdefault(name, []).append(claims)
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
    found = {name: merge_claims(claims) for name, claims in claimed.items()}
    costs = _costs(work_dir, names, options, say)
    return dict(seeds=list(seeds), arch=ARCH, epochs=EPOCHS, scores=scores, costs=costs, claims=found)


def _run_apart(run: tuple[str, str, int, str]) -> tuple[float, Result | None]:
    """:func:`_run` in a process of its own, whose end, whatever the cause, is noticed."""
    with ProcessPoolExecutor(1, multiprocessing.get_context('spawn'), _start) as pool:
        try:
            return pool.submit(_run, run).result()
        except BrokenProcessPool as error:
            name, task, seed, work_dir = run
            raise RuntimeError(
                f'the process that trained {name} ({task}, seed {seed}) was killed (out of memory? --jobs 1 needs half '
                f'as much): the same command goes on from what is done in {work_dir!r}'
            ) from error


def _start() -> None:
    """One thread a training, and none that goes on when the command has been killed."""
    torch.set_num_threads(1)

    def end_with_parent() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _run(run: tuple[str, str, int, str]) -> tuple[float, Result | None]:
    """Train one attention once: top-1 or box AP in per cent on the validation images, and what claims are about it."""
    name, task, seed, work_dir = run
    folder = Path(work_dir, name, f'{task}_{seed}')
    of = config_of(name, task).pretty_text

    def score() -> float:
        metrics = evaluate(config_of(name, task), checkpoint, work_dir=str(folder), demo=True)
        value = metrics.get(TASKS[task], 0.0)  # a detector that finds nothing at all has no AP
        return value * (1 if task == 'classification' else 100)

    def claims() -> Result:
        cfg = config_of(name, task)
        demo.overlay(cfg)
        trained, _ = load_model(cfg, checkpoint, 'cpu')
        torch.manual_seed(seed)
        start = MODELS.build(cfg.model).eval()
        return measure_claims(trained, start, cfg)

    claimed = task == 'classification' and name in CLAIMS_OF
    folder.mkdir(parents=True, exist_ok=True)
    # what MMEngine says is in the folder's own logs as well; on the terminal it would bury the scores
    with (folder / 'output.txt').open('a') as log, redirect_stdout(log), redirect_stderr(log):
        checkpoint = train_once(config_of(name, task), folder, seed)
        return once(folder / 'score.json', of, score), once(folder / 'claims.json', of, claims) if claimed else None


def config_of(name: str, task: str) -> Config:
    """A shipped config with the small pyramid in it."""
    if task == 'classification':
        cfg = load_config(mmsoft.config_path('soft_pp_tiny_300e_in1k'))
        size = (demo.CLASS_SIZE, demo.CLASS_SIZE)
    else:
        cfg = load_config(mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco'))
        size = demo.SIZE
        cfg.model.neck.update(in_channels=list(ARCH['dims']), out_channels=NECK)
        cfg.model.bbox_head.update(in_channels=NECK, feat_channels=NECK, stacked_convs=2)
    cfg.demo_epochs = EPOCHS[task]
    cfg.model.backbone.update(arch=ARCH, attn=attention_at(name, size), img_size=size)
    return cfg


def _costs(work_dir: Path, names: Sequence[str], options: Options, say: Callable[[str], None]) -> Result:
    """Time and memory of passes, in turn, also of a detector's large image. A group is measured anew for others."""

    def cases(size: tuple[int, int], task: str, batch: int) -> tuple[Case, ...]:
        return tuple(Case(f'pyramid:{name}', size, task, batch=batch) for name in names)

    def measure(group: Group) -> Result:
        records: list[Record] = []
        measure_group(group, options, records, say)
        return make_report(group.name, records, (), options)

    reports = [
        once(work_dir / f'cost_{group.name}.json', f'{group} {options}', partial(measure, group), anew=True)
        for group in (
            Group('train', cases(COST_SIZE, 'train', BATCH)),
            Group('forward', cases(COST_SIZE, 'forward', BATCH)),
            Group('dense', cases(DENSE, 'forward', 1)),
        )
    ]
    return dict(machine=reports[0]['machine'], cases=[row for report in reports for row in report['cases']])


def study_table(result: Result) -> str:
    """Markdown: a row an attention, with the columns of the paper's Table 2."""
    costs = costs_of(result)
    heads = ['attention', 'parameters', 'multiply-adds', 'memory, training / inference']
    heads.append('images a second, training / inference')
    heads += ['800 x 1344: time', 'memory', 'top-1', 'box AP']
    lines = [f'| {" | ".join(heads)} |', '|---' * len(heads) + '|']
    for name, scores in result['scores'].items():
        train, forward, dense = (costs[name, what] for what in ('train', 'forward', 'dense'))
        cells = [
            TITLES[name],
            f'{forward["parameters"] / 1e6:.2f} M',
            f'{forward["macs"] / forward["batch"] / 1e9:.2f} G',
        ]
        cells.append(' / '.join(_cell(row, 'peak_mib', '{:.0f} MiB'.format) for row in (train, forward)))
        cells.append(' / '.join(_cell(row, 'seconds', _throughput) for row in (train, forward)))
        cells += [_cell(dense, 'seconds', '{:.2f} s'.format), _cell(dense, 'peak_mib', '{:.0f} MiB'.format)]
        cells += [spread(scores['classification'], unit=' %'), spread(scores['detection'])]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def costs_of(result: Result) -> dict[tuple[str, str], Result]:
    """What was measured, by attention and ``train``, ``forward`` or ``dense``."""
    return {(row['model'].removeprefix('pyramid:'), row['group']): row for row in result['costs']['cases']}


def _cell(row: Result, key: str, form: Callable[[float], str]) -> str:
    return '-' if row[key] is None else form(row[key])


def _throughput(seconds: float) -> str:
    return f'{BATCH / seconds:.0f}'


def claims_table(result: Result) -> str:
    """Markdown of InLine's two claims."""
    heads = ['attention', 'queries confused with their double', 'pairs of queries confused']
    heads += ['pictures with such a pair', 'weight in the 3 x 3 neighbourhood, by layer']
    heads += ['without the local term', 'before training']
    lines = [f'| {" | ".join(heads)} |', '|---' * len(heads) + '|']
    for label, found in claims_by_label(result).items():
        near, alone, start = (
            ', '.join(f'{100 * share:.0f} %' for share in found[key]) for key in ('near', 'near_alone', 'near_start')
        )
        counts = found['confusions']
        cells = [label, f'{100 * found["doubled"]:.0f} %', f'{sum(counts):,} of {len(counts) * found["pairs"]:,}']
        cells += [f'{sum(map(bool, counts))} of {len(counts)}', near, alone if alone != near else '', start]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def claims_by_label(result: Result) -> dict[str, Result]:
    """What was found of each attention, and of linear attention's queries and keys by InLine's formula."""
    labels = dict(own='{}', inline="{}: the same queries and keys by InLine's formula")
    return {
        labels[kind].format(TITLES[name]): found
        for name, kinds in result['claims'].items()
        for kind, found in kinds.items()
    }


def save(result: Result, out: str | Path) -> list[Path]:
    """``<out>.json`` and ``<out>.md``, and plots beside them."""
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix('.json').write_text(json.dumps(result, indent=1, default=float) + '\n')
    out.with_suffix('.md').write_text(f'{study_table(result)}\n\n{claims_table(result)}\n', encoding='utf-8')
    plots = plot_attention_study(result['scores'], costs_of(result), claims_by_label(result), TITLES, FACTORS, out)
    return [out.with_suffix('.json'), out.with_suffix('.md'), *plots]
