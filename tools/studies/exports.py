"""What models of the demo score as checkpoints and as exported files, and what backbones cost beside Swin-T."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from benchmark.cases import Case, build_backbone
from mmengine.evaluator import Evaluator
from mmengine.registry import DATASETS, init_default_scope

import mmsoft
from mmsoft.engine.config import load_config
from mmsoft.engine.demo import overlay
from mmsoft.engine.exported import ExportedPredictor
from mmsoft.engine.predictor import Predictor
from mmsoft.exporting import ExportError, export
from mmsoft.weights.writing import whole_file

from .once import once, train_once

# Configs, the pictures of the demo's world on which int8 measures ranges, and what is reported, with its factor.
MODELS = {
    'soft_pp_tiny_300e_in1k': ('imagenet/train', {'accuracy/top1': 1}),
    'retinanet_soft_pp_tiny_1x_coco': ('coco/train2017', {'coco/bbox_mAP': 100}),
    'mask_rcnn_soft_pp_tiny_1x_coco': ('coco/train2017', {'coco/bbox_mAP': 100, 'coco/segm_mAP': 100}),
    'upernet_soft_pp_tiny_160k_ade20k': ('ade/ADEChallengeData2016/images/training', {'mIoU': 1}),
}
PRECISIONS = ('fp32', 'fp16', 'int8')
RUNTIMES = ('onnxruntime', 'openvino')
BACKBONES = ('swin_tiny', 'soft_pp_tiny', 'soft_pp_small', 'mila_tiny', 'ravlt_tiny')
SIZE = (800, 1333)


def study(
    name: str, work_dir: Path, world: Path, seed: int, precisions: Sequence[str], runtimes: Sequence[str]
) -> dict[str, list[float]]:
    """Points by 'checkpoint' and 'precision, runtime'; trained, exported and tested where that is not done yet."""
    images, metrics = MODELS[name]
    folder = work_dir / name
    checkpoint = train_once(load_config(mmsoft.config_path(name)), folder, seed)
    predictor, cfg = Predictor(checkpoint, device='cpu'), load_config(mmsoft.config_path(name))
    overlay(cfg)

    def points(tested: Any) -> list[float]:
        found = evaluate(cfg, tested)
        return [factor * found[metric] for metric, factor in metrics.items()]

    found = {'checkpoint': once(folder / 'points_checkpoint.json', checkpoint, lambda: points(predictor))}
    for precision in precisions:
        file = folder / f'{precision}.onnx'
        if not file.is_file():
            try:
                export(None, checkpoint, file, precision, images=world / images if precision == 'int8' else None)
            except ExportError as error:
                print(f'{name} in {precision}: {error}')
                continue
        for runtime in runtimes:
            of, path = f'{checkpoint}, {precision}, {runtime}', folder / f'points_{precision}_{runtime}.json'
            found[f'{precision}, {runtime}'] = once(path, of, lambda: points(ExportedPredictor(file, runtime)))  # noqa: B023
    return found


def evaluate(cfg: Any, predictor: Predictor | ExportedPredictor) -> dict[str, float]:
    """Metrics of the config's test set, one picture at a time."""
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    dataset, evaluator = DATASETS.build(cfg.test_dataloader.dataset), Evaluator(cfg.test_evaluator)
    evaluator.dataset_meta = getattr(dataset, 'metainfo', None)
    for index in range(len(dataset)):
        truth = dataset[index]['data_samples']
        image = predictor.load(dict(img_path=truth.img_path))['img']
        (found,) = predictor.predict([predictor.prepare(image, truth.img_path)])
        for field in ('pred_instances', 'pred_sem_seg', 'pred_scores'):
            if field in found:
                setattr(truth, field, getattr(found, field))
        evaluator.process(data_samples=[truth], data_batch=None)
    return evaluator.evaluate(len(dataset))


def points_table(found: dict[str, dict[str, list[float]]]) -> str:
    """Markdown: a row a model, with what each file loses beside its checkpoint's points."""
    columns = list(dict.fromkeys(key for points in found.values() for key in points))
    lines = [f'| model | {" | ".join(columns)} |', '|---' * (len(columns) + 1) + '|']
    for name, points in found.items():
        titles = [metric.rpartition('/')[2] for metric in MODELS[name][1]]
        for place, title in enumerate(titles):
            start = points['checkpoint'][place]
            cells = [f'{points[key][place] - start:+.2f}' if key in points else '' for key in columns[1:]]
            lines.append(f'| {name.split("_soft")[0]}, {title} | {" | ".join([f"{start:.2f}", *cells])} |')
    return '\n'.join(lines).replace('soft_pp_tiny_300e_in1k', 'classifier')


def costs(folder: Path, threads: int, rounds: int) -> dict[str, dict[str, list[list[float]]]]:
    """Of backbones as ONNX files, by how the file is opened: (s, MiB) of a process a round, which take turns."""
    files = {name: folder / f'{name}.onnx' for name in BACKBONES}
    for name, file in files.items():
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            model = build_backbone(Case(name, SIZE))
            model.eval()  # mmdet's Swin returns nothing here
            with whole_file(file) as partial:
                torch.onnx.export(model, (torch.rand(1, 3, *SIZE),), partial, dynamo=True, verbose=False)
    found: dict[str, dict[str, list[list[float]]]] = {way: {name: [] for name in files} for way in OPENED}
    for _ in range(rounds):
        for way, code in OPENED.items():
            for name, file in files.items():
                command = [sys.executable, '-c', code + RUN, str(file), str(threads), json.dumps([1, 3, *SIZE])]
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                found[way][name].append(json.loads(done.stdout))
    return found


OPENED = {
    'as mmsoft.deploy opens it': """
import pathlib, sys
from mmsoft.deploy.runtimes import OnnxRuntime
session = OnnxRuntime(pathlib.Path(sys.argv[1]), int(sys.argv[2])).session
""",
    "with onnxruntime's own settings": """
import onnxruntime, sys
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = int(sys.argv[2])
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=['CPUExecutionProvider'])
""",
}
RUN = """
import json, sys, time
import numpy as np
from mmsoft.memory import peak_memory
images = {session.get_inputs()[0].name: np.random.default_rng(0).random(json.loads(sys.argv[3]), np.float32)}
times = []
for _ in range(4):
    start = time.perf_counter()
    session.run(None, images)
    times.append(time.perf_counter() - start)
print(json.dumps([min(times[1:]), peak_memory()]))
"""


def costs_table(found: dict[str, dict[str, list[list[float]]]], threads: int) -> str:
    """Markdown, the best of the rounds: on a machine that others use, the least disturbed."""
    tables = []
    for way, of in found.items():
        best = {name: [min(values) for values in zip(*rounds, strict=True)] for name, rounds in of.items()}
        against = best[BACKBONES[0]]
        lines = [f'| {way} | s | MiB | of {BACKBONES[0]} |', '|---|---|---|---|']
        for name, (seconds, memory) in best.items():
            share = f'{seconds / against[0]:.2f} of its time, {memory / against[1]:.2f} of its memory'
            lines.append(f'| {name} | {seconds:.2f} | {memory:.0f} | {share} |')
        tables += [*lines, '']
        rounds = len(of[BACKBONES[0]])
    load = os.getloadavg()[0]
    return '\n'.join([*tables, f'{SIZE[0]} x {SIZE[1]}, {threads} threads, {rounds} rounds, load {load:.1f}'])
