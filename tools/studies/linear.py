"""Linear models without labels, from softmax teachers, on the demo's drawn worlds: what is kept, against scratch."""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from mmengine.config import Config

import mmsoft
from mmsoft.distillation.linearizing import linearize_run
from mmsoft.engine.config import load_config
from mmsoft.engine.training import evaluate

from .once import once, train_once
from .tables import spread

DIMS = [32, 64, 128, 256]
SWIN = dict(embed_dims=32, depths=(1, 1, 2, 1), num_heads=(1, 2, 4, 8), window_size=7, drop_path_rate=0.0)
CONFIGS = dict(boxes='retinanet_inline_pvt_tiny_1x_coco', labels='upernet_inline_swin_tiny_160k_ade20k')
METRICS = dict(boxes='coco/bbox_mAP_50', labels='mIoU')
EPOCHS = 16  # of the teacher; the linear model, and the one from scratch, have a quarter of its iterations
SHARE = 4
STEPS_AN_EPOCH = 60  # 240 pictures in batches of 4
MODELS = ('teacher', 'copy', 'outputs', 'linear', 'scratch')


def teacher_config(task: str, epochs: int = EPOCHS) -> Config:
    """A narrow model on OpenMMLab's own Swin."""
    cfg = load_config(mmsoft.config_path(CONFIGS[task]))
    library = 'mmdet' if task == 'boxes' else 'mmseg'
    cfg.model.backbone = dict(type=f'{library}.SwinTransformer', **SWIN)
    cfg.demo_epochs = epochs
    if task == 'boxes':
        cfg.model.neck.update(in_channels=DIMS, out_channels=64)
        cfg.model.bbox_head.update(in_channels=64, feat_channels=64, stacked_convs=2)
    else:
        cfg.model.decode_head.update(in_channels=DIMS, channels=64)
        cfg.model.auxiliary_head.update(in_channels=DIMS[2], channels=32)
    return cfg


def scores_of(task: str, seed: int, work_dir: Path, epochs: int = EPOCHS) -> dict[str, float]:
    """Of the teacher, after each stage, and from scratch with labels and as many iterations."""
    folder, cfg = work_dir / f'{task}_{seed}', teacher_config(task, epochs)
    checkpoint = train_once(copy.deepcopy(cfg), folder / 'teacher', seed)
    (folder / 'teacher.py').write_text(cfg.pretty_text)
    steps = epochs * STEPS_AN_EPOCH // SHARE
    config, out = str(folder / 'teacher.py'), folder / 'linear'
    _, linear, written = linearize_run(
        config,
        checkpoint,
        out,
        steps=dict(outputs=steps // 3, maps=steps - steps // 3),
        batch_size=4,
        workers=0,
        seed=seed,
        resume=True,
        demo=True,
    )
    alone = copy.deepcopy(cfg)
    alone.model.backbone, alone.demo_epochs = linear.cfg.model.backbone, epochs // SHARE
    alone.custom_imports = linear.cfg.custom_imports
    scratch = train_once(copy.deepcopy(alone), folder / 'scratch', seed)
    tested = dict(teacher=(cfg, checkpoint), scratch=(alone, scratch))
    tested |= {name: (alone, str(written[name])) for name in ('copy', 'outputs', 'linear')}

    def test(name: str) -> float:
        model, weights = tested[name]
        found = evaluate(copy.deepcopy(model), weights, work_dir=str(folder / f'test_{name}'), demo=True)
        return float(found[METRICS[task]]) * (100 if task == 'boxes' else 1)

    return {name: once(folder / f'{name}.json', f'{cfg.pretty_text} {name}', partial(test, name)) for name in MODELS}


def study(work_dir: Path, seeds: Iterable[int], tasks: Iterable[str], epochs: int = EPOCHS) -> dict[str, Any]:
    """Scores by task and model, one a seed."""
    found: dict[str, dict[str, list[float]]] = {}
    for task in tasks:
        for seed in seeds:
            for name, score in scores_of(task, seed, work_dir, epochs).items():
                found.setdefault(task, {}).setdefault(name, []).append(score)
    return found


def study_table(found: Mapping[str, Mapping[str, list[float]]]) -> str:
    """Markdown: a row a model; in brackets the share of the teacher's score, nan if that is 0."""
    heads = dict(boxes='AP50 of boxes', labels='mIoU')
    lines = [f'| | {" | ".join(heads[task] for task in found)} |', '|---' * (len(found) + 1) + '|']
    for name in MODELS:
        cells = []
        for scores in found.values():
            shares = [
                100 * own / of if of else float('nan') for own, of in zip(scores[name], scores['teacher'], strict=True)
            ]
            cells.append(f'{spread(scores[name])} ({spread(shares, 0, " %")})')
        lines.append(f'| {name} | {" | ".join(cells)} |')
    return '\n'.join(lines)
