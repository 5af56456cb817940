"""Attentions compared in one small pyramid: the paper's Table 2 on the demo's worlds, with costs measured here.

Every attention trains from the same seeds on the same pictures for the same number of steps, as a classifier and in
a RetinaNet; only ``attn`` differs.
"""

import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

import mmsoft

from . import demo
from .attention_claims import measure_claims
from .benchmark.cases import PYRAMID_ATTENTIONS, Case
from .benchmark.measure import Group, Options, Record, measure_group
from .benchmark.pyramid import ARCH, attention_at
from .config import load_config
from .predict import load_model
from .studies import once, train_once
from .tables import spread
from .training import TOP1, evaluate

TASKS = dict(classification=TOP1, detection='coco/bbox_mAP')
TITLES = dict(
    softmax='softmax',
    softmax_reduced="softmax, PVT's spatial reduction",
    linformer='Linformer',
    performer='Performer',
    nystromformer='Nyströmformer',
    linear='linear, ReLU',
    inline='InLine',
    soft='SOFT',
    soft_pp='SOFT++',
)
NECK = 64  # channels of the neck and heads: the pyramid is what is compared
COST_SIZE, BATCH = (224, 224), 8
DENSE = (800, 1344)
CLAIMS_OF = ('softmax', 'linear', 'inline')
Result = dict[str, Any]


def study(
    work_dir: str | Path, seeds: Sequence[int], names: Sequence[str], options: Options, say: Callable[[str], None]
) -> Result:
    """Train, test and measure what is not done yet below ``work_dir``; everything found."""
    work_dir = Path(work_dir)
    scores = {name: {task: [] for task in TASKS} for name in names}
    for seed in seeds:
        for task in TASKS:
            for name in names:
                say(f'{task}, seed {seed}: {TITLES[name]}')
                scores[name][task].append(_score(name, task, seed, work_dir))
    claims = {}
    for name in CLAIMS_OF:
        if name in names:
            say(f'claims: {TITLES[name]}')
            cfg, checkpoint = _trained(name, 'classification', seeds[0], work_dir)
            claims[name] = once(
                work_dir / name / 'claims.json', cfg.pretty_text, lambda m=load_model(cfg, checkpoint, 'cpu')[0], c=cfg: measure_claims(m, c)
            )
    costs = once(work_dir / 'costs.json', f'{list(names)} {options}', lambda: _costs(names, options, say))
    return dict(
        about=dict(
            machine=platform.processor() or platform.machine(),
            cores=os.cpu_count(),
            threads=options.threads,
            torch=torch.__version__,
            seeds=list(seeds),
            arch=ARCH,
        ),
        scores=scores,
        costs=costs,
        claims=claims,
    )


def _score(name: str, task: str, seed: int, work_dir: Path) -> float:
    """Top-1 or box AP in per cent on the world's validation images."""
    cfg, checkpoint = _trained(name, task, seed, work_dir)
    of = cfg.pretty_text

    def test() -> float:
        metrics = evaluate(cfg, checkpoint, work_dir=str(Path(checkpoint).parent), demo=True)
        return metrics[TASKS[task]] * (1 if task == 'classification' else 100)

    return once(Path(checkpoint).parent / 'score.json', of, test)


def _trained(name: str, task: str, seed: int, work_dir: Path) -> tuple[Config, str]:
    """A fresh config, and the checkpoint that training it has left."""
    folder = work_dir / name / f'{task}_{seed}'
    return config_of(name, task), train_once(config_of(name, task), folder, seed)


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
    cfg.model.backbone.update(arch=ARCH, attn=attention_at(name, size), img_size=size)
    return cfg


def _costs(names: Sequence[str], options: Options, say: Callable[[str], None]) -> list[Result]:
    """Time and memory of passes, in turn; the large image of a detector once."""
    def cases(size: tuple[int, int], task: str, batch: int) -> tuple[Case, ...]:
        return tuple(Case(f'pyramid:{name}', size, task, batch=batch) for name in names)

    records: list[Record] = []
    for group in (
        Group('train', cases(COST_SIZE, 'train', BATCH)),
        Group('forward', cases(COST_SIZE, 'forward', BATCH)),
        Group('dense', cases(DENSE, 'forward', 1), rounds=1),
    ):
        measure_group(group, options, records, say)
    return [
        dict(
            name=record.case.part,
            what=record.group,
            size=record.case.size,
            batch=record.case.batch,
            seconds=record.seconds,
            peak_mib=record.peak_mib,
            parameters=record.parameters,
            macs=record.macs and record.macs / record.case.batch,
            failure=record.failure,
        )
        for record in records
    ]


def study_table(result: Result) -> str:
    """Markdown: a row an attention, in the order of the paper's Table 2."""
    costs = {(row['name'], row['what']): row for row in result['costs']}
    heads = ['attention', 'parameters', 'multiply-adds', 'memory, training', 'images a second, training / inference']
    heads += ['800 × 1344: time', 'memory', 'top-1', 'box AP']
    lines = [f'| {" | ".join(heads)} |', '|---' * len(heads) + '|']
    for name, scores in result['scores'].items():
        train, forward, dense = (costs[name, what] for what in ('train', 'forward', 'dense'))
        cells = [TITLES[name], f'{forward["parameters"] / 1e6:.2f} M', f'{forward["macs"] / 1e9:.2f} G']
        cells += [_memory(train), f'{_throughput(train)} / {_throughput(forward)}']
        cells += [_failed(dense) or f'{min(dense["seconds"]):.2f} s', _memory(dense)]
        cells += [spread(scores['classification'], unit=' %'), spread(scores['detection'])]
        lines.append(f'| {" | ".join(cells)} |')
    return '\n'.join(lines)


def _failed(row: Result) -> str:
    return (row['failure'] or '').replace('|', '/')


def _memory(row: Result) -> str:
    return f'{sorted(row["peak_mib"])[len(row["peak_mib"]) // 2]:.0f} MiB' if row['peak_mib'] else _failed(row) or '-'


def _throughput(row: Result) -> str:
    return _failed(row) or f'{row["batch"] / sorted(row["seconds"])[len(row["seconds"]) // 2]:.0f}'


def claims_table(result: Result) -> str:
    """Markdown of InLine's two claims."""
    lines = [
        '| attention | weights of a query and its double differ by | pairs of queries confused | in the 3 × 3 neighbourhood, by layer | without the local term |',
        '|---|---|---|---|---|',
    ]
    for name, found in result['claims'].items():
        local = [', '.join(f'{100 * share:.0f} %' for share in found[key]) for key in ('near', 'near_alone')]
        lines.append(
            f'| {TITLES[name]} | {100 * found["collinear"]:.2g} % | {100 * found["confused"]:.2g} % '
            f'| {local[0]} | {local[1] if local[1] != local[0] else ""} |'
        )
    return '\n'.join(lines)


def save(result: Result, out: str | Path) -> list[Path]:
    """``<out>.json`` and ``<out>.md``, and plots beside them."""
    from mmsoft.visualization.attention_study import plot_attention_study

    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix('.json').write_text(json.dumps(result, indent=1, default=float) + '\n')
    out.with_suffix('.md').write_text(f'{study_table(result)}\n\n{claims_table(result)}\n')
    return [out.with_suffix('.json'), out.with_suffix('.md'), *plot_attention_study(result, TITLES, out)]
