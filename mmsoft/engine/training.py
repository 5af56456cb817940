"""Training and testing from a config file: everything that can fail early fails before a model is built."""

import copy
import errno
import json
import logging
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from filelock import FileLock
from mmengine.config import Config, ConfigDict
from mmengine.device import get_device
from mmengine.dist import get_world_size, is_main_process
from mmengine.evaluator import DumpResults
from mmengine.hooks import EMAHook
from mmengine.logging import print_log
from mmengine.registry import DATASETS, init_default_scope

from mmsoft.checkpoints import load, read_checkpoint
from mmsoft.files import json_name, json_plain, json_text
from mmsoft.versions import REQUIREMENTS, require
from mmsoft.visualization import contact_sheet, plot_curves
from mmsoft.weights.sources import latest_checkpoint, locate, of_run, sha256_of

from . import demo as demo_world
from .by_class import keep_classes
from .classification import AverageWeights, check_teacher
from .conditions import conditions
from .config import (
    check_data,
    check_levels,
    check_pretrained,
    check_sizes,
    guard_files,
    model_for,
    only_for_classifiers,
    set_img_size,
    start_from,
    without_pretrained,
)
from .fine_tuning import fresh_layers
from .guarded import EvaluationRunner, GuardedRunner, TrainingRunner
from .heads import fit_heads
from .hooks import DrawPredictions
from .launch import start_processes
from .layer_decay import check_decay, use_layer_decay
from .lock import lock_work_dir
from .own_data import keep_run, use_own_data
from .parts import kind_of
from .results import dump_whole, write_whole
from .resuming import unwrapped
from .runner import PARTIAL, Runner, was_trained_in
from .schedules import fit_length, set_length, space_out
from .tasks import CLASSIFICATION, has_regions, task_of
from .taught import prepare_teacher
from .watching import check_equal, end_together, in_company

TOP1 = 'accuracy/top1'
ROOM = f'room{PARTIAL}'  # in the work directory: what the disk can take


def train(
    cfg: Config,
    *,
    work_dir: str,
    resume: str | None = None,
    amp: bool = False,
    auto_scale_lr: bool = False,
    pretrained: bool = True,
    demo: bool = False,
    seed: int | None = None,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    fine_tune: str | None = None,
    linear_probe: str | None = None,
    img_size: int | Sequence[int] | None = None,
    save_every: str | None = None,
    resume_anyway: bool = False,
    layer_decay: float | None = None,
    data: str | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    keep_length: bool = False,
) -> Runner:
    """Train as the config says; the Runner that did it. ``resume`` is a checkpoint, or 'auto' for the last one here.

    ``save_every`` is a time or a number of iterations between checkpoints, as '15min' or '500it'; ``resume_anyway``
    permits a run to go on with another batch, lr or config.
    ``fine_tune`` is a checkpoint from which a model starts, except for layers of classes that differ from the data's;
    ``linear_probe`` one from which a classifier starts, whose head alone learns. Heads follow the classes of the data.
    ``img_size`` is another size of the pictures, (height, width) or one for both, ``epochs`` another length of the
    run, ``batch`` other images of an iteration, in all processes together. ``data`` is a folder of one's own, in any of
    the formats of docs/own_data.md; the length of the run follows it, unless ``epochs`` or ``keep_length`` are given.
    """
    if layer_decay is not None:
        check_decay(layer_decay)
    _prepare(cfg, work_dir, launcher, demo, trust_checkpoint, learns=True)
    cfg.resume_anyway, cfg.save_every = resume_anyway, save_every
    with in_company():
        lock = _start_alone(work_dir)
        if data:
            use_own_data(cfg, data, work_dir, scales_lr=auto_scale_lr)
        if resume is None and cfg.get('resume') and not cfg.get('load_from'):
            resume = 'auto'
        source = _source(cfg, resume)
        if layer_decay is not None:
            use_layer_decay(cfg.optim_wrapper, layer_decay)
        options = (amp, auto_scale_lr, pretrained, demo, seed, fine_tune, linear_probe, img_size, save_every)
        check_equal(dict(conditions(cfg), options=(*options, epochs, batch, keep_length), resume=source))
        randomness = dict(cfg.get('randomness') or {})
        cfg.randomness = dict(randomness, seed=randomness.get('seed') or 0 if seed is None else seed)
        if img_size is not None:
            set_img_size(cfg, img_size)
        if batch is not None:
            _set_batch(cfg, batch, auto_scale_lr)
        if epochs is not None:
            _set_epochs(cfg, epochs)
        if data and not keep_length:
            epoch_length = _epoch_length(cfg)
            if epochs is None:
                fit_length(cfg, epoch_length)
            space_out(cfg, epoch_length)
        if fine_tune or linear_probe:
            _start_anew(cfg, fine_tune, linear_probe, pretrained)
        _resume_from(cfg, resume, source)
        if not pretrained:
            without_pretrained(cfg)
        fresh = fresh_layers(cfg, fine_tune, trust_checkpoint) if fine_tune and cfg.load_from == fine_tune else None
        if not (cfg.get('resume') or cfg.get('load_from')):
            check_pretrained(cfg)
        if amp:
            _use_amp(cfg)
        elif kind_of(cfg.optim_wrapper) == 'AmpOptimWrapper' and get_device() == 'cpu':
            _use_float32(cfg)
        if auto_scale_lr:
            _scale_lr(cfg)
        if get_world_size() > 1 and not cfg.get('find_unused_parameters'):
            check_levels(cfg)
        _report_data(cfg, 'train', 'val')
        if not cfg.get('resume'):
            _forget_faults(TrainingRunner, work_dir)
        runner = TrainingRunner.from_cfg(cfg)
        runner.config_values, runner.fresh = conditions(cfg), fresh
        _check_room(runner)
        prepare_teacher(unwrapped(runner.model))
        runner.train()
    if lock is not None:
        lock.release()
    return runner


def _scale_lr(cfg: Config) -> None:
    if 'base_batch_size' not in cfg.get('auto_scale_lr', {}):
        raise ValueError('--auto-scale-lr: the config has no auto_scale_lr.base_batch_size, the batch of its lr')
    cfg.auto_scale_lr.enable = True


def _set_batch(cfg: Config, batch: int, auto_scale_lr: bool) -> None:
    processes, base = get_world_size(), cfg.get('auto_scale_lr', {}).get('base_batch_size')
    if batch < 1 or batch % processes:
        raise ValueError(
            f'--batch {batch}: it must be 1 or more images an iteration, a multiple of the {processes} processes'
        )
    cfg.train_dataloader.batch_size = batch // processes
    if base not in (None, batch) and not auto_scale_lr and not cfg.auto_scale_lr.get('enable'):
        print_log(
            f'the lr of the config is for a batch of {base}, and this is one of {batch}: --auto-scale-lr scales it',
            logger='current',
            level=logging.WARNING,
        )


def _set_epochs(cfg: Config, epochs: int) -> None:
    if epochs < 1:
        raise ValueError(f'--epochs must be 1 or more; got {epochs}')
    set_length(cfg, epochs, lambda: _epoch_length(cfg))


def _epoch_length(cfg: Config) -> int:
    """Iterations of an epoch."""
    _report_data(cfg, 'train', classes=False)
    samples = len(DATASETS.build(copy.deepcopy(cfg.train_dataloader.dataset)))
    batches = samples / (cfg.train_dataloader.batch_size * get_world_size())
    return max(1, math.floor(batches) if cfg.train_dataloader.get('drop_last') else math.ceil(batches))


def _start_anew(cfg: Config, fine_tune: str | None, linear_probe: str | None, pretrained: bool) -> None:
    """Let the config start from a checkpoint, with heads for the classes of the data."""
    if not pretrained or (fine_tune and linear_probe) or cfg.get('load_from'):
        raise ValueError(
            '--fine-tune, --linear-probe, --no-pretrained and load_from exclude each other: give one of them'
        )
    if linear_probe:
        only_for_classifiers(cfg, '--linear-probe', 'take --fine-tune')
    _report_data(cfg, 'train', 'val', classes=False)
    if task_of(cfg) is CLASSIFICATION:
        start_from(cfg, fine_tune or linear_probe, only_head=bool(linear_probe))
        return
    changed = fit_heads(cfg, 'train')
    if changed:
        values = ', '.join(f'{name}={value}' for name, value in changed.items())
        print_log(f'heads follow the classes of the data: {values}', logger='current')
    cfg.load_from = fine_tune


def evaluate(
    cfg: Config,
    checkpoint: str,
    *,
    work_dir: str,
    out: str | None = None,
    drawings: str | None = None,
    demo: bool = False,
    launcher: str = 'none',
    trust_checkpoint: bool = False,
    sizes: Sequence[int] = (),
    data: str | None = None,
) -> dict[str, Any]:
    """Metrics of a checkpoint on the test set, also saved as ``metrics.json``; per-class tables go to the log.

    ``out``: a pickle of all predictions; ``drawings``: a folder for pictures of them; ``sizes``: of the pictures
    that a classifier is tested with, which gives metrics by size. ``data``: a folder of one's own to test on.
    """
    if out and Path(out).suffix not in ('.pkl', '.pickle'):
        raise ValueError(f'--out must end in .pkl or .pickle; got {out!r}')
    check_sizes(cfg, sizes)
    if sizes and (out or drawings):
        raise ValueError('--sizes gives a table; for --out and --show-dir test one size, with --cfg-options')
    if data:
        keep_run(work_dir)
    _prepare(cfg, work_dir, launcher, demo, trust_checkpoint)
    if data:
        use_own_data(cfg, data, work_dir, checkpoint, trust_checkpoint)
    model = model_for(cfg, load(checkpoint, trust_checkpoint))
    _forget_faults(EvaluationRunner, work_dir)
    _report_data(cfg, 'test')
    runner = EvaluationRunner.from_cfg(cfg)
    runner.take_model(model)
    runner.evaluate_with(_metrics(cfg, out))
    if drawings:
        runner.register_hook(DrawPredictions(drawings))
    runner.load_checkpoint(checkpoint, strict=True)
    dumps = [metric for metric in runner.test_loop.evaluator.metrics if out and isinstance(metric, DumpResults)]
    for metric in dumps:
        dump_whole(metric)
    for metric in runner.test_loop.evaluator.metrics:
        keep_classes(metric)
    metrics = {str(size): _test_at(runner, size) for size in sizes} if sizes else runner.test()
    if is_main_process():
        if sizes:
            print(size_table({Path(checkpoint).name: metrics}))
        path = Path(work_dir, 'metrics.json')
        of = dict(**json_name('checkpoint', str(checkpoint)), sha256=sha256_of(locate(checkpoint)))
        write_whole(
            path, [json.dumps(dict(**of, metrics=json_plain(metrics)), indent=1, default=float).encode(), b'\n']
        )
        print_log(f'metrics saved in {path}', logger='current')
    drawn = [hook for hook in runner.hooks if isinstance(hook, DrawPredictions)]
    for what, lost in [(out, each.lost) for each in dumps] + [(drawings, each.lost) for each in drawn]:
        if lost:
            raise OSError(f'{what!r} is not complete, though the metrics are: {lost}') from lost
    return metrics


def run_folder(checkpoint: str) -> str | None:
    """The work directory of the run that wrote a checkpoint, if it lies there."""
    folder = Path(of_run(checkpoint)).parent
    return str(folder) if Path(checkpoint).exists() and was_trained_in(folder) else None


def _test_at(runner: EvaluationRunner, size: int) -> dict[str, float]:
    """Metrics with pictures of this size."""
    cfg = copy.deepcopy(runner.cfg)
    set_img_size(cfg, size, tables=False)
    runner.begin_anew(cfg.test_dataloader)
    return runner.test()


def _metrics(cfg: Config, out: str | None) -> list[ConfigDict]:
    """The config's, by class where they can, and the dump of all predictions to ``out``."""
    metrics = copy.deepcopy(cfg.test_evaluator if isinstance(cfg.test_evaluator, list) else [cfg.test_evaluator])
    for metric in metrics:
        if kind_of(metric) == 'CocoMetric':
            metric.classwise = True
    return [*metrics, *([ConfigDict(type=task_of(cfg).dump, out_file_path=out)] if out else [])]


def size_table(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Markdown of top-1 accuracies: a row a model, a column a size."""
    sizes = list(next(iter(rows.values())))
    lines = [f'| top-1, % | {" | ".join(sizes)} |', f'|---|{"---|" * len(sizes)}']
    for name, metrics in rows.items():
        cells = [f'{metrics[size][TOP1]:.1f}' for size in sizes]
        lines.append(f'| {name} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def _prepare(
    cfg: Config, work_dir: str, launcher: str, demo: bool, trust_checkpoint: bool, learns: bool = False
) -> None:
    """What training and testing share."""
    scope = cfg.get('default_scope', 'mmengine')
    require('mmcv', *(name for name in (scope,) if name in REQUIREMENTS))
    start_processes(launcher, (cfg.get('env_cfg') or {}).get('dist_cfg'))
    cfg.launcher, cfg.work_dir, cfg.trust_checkpoint = launcher, work_dir, trust_checkpoint
    init_default_scope(scope)  # in each process: all of them build data sets
    guard_files(cfg, trust_checkpoint)
    if demo:
        demo_world.overlay(cfg)
        if is_main_process():
            print(demo_world.describe(cfg), flush=True)
    check_teacher(cfg.model, needed=learns)
    _check_work_dir(work_dir)


def _forget_faults(kind: type[GuardedRunner], work_dir: str) -> None:
    """The record of an earlier run of this kind goes."""
    if is_main_process():
        Path(work_dir, kind.faults).unlink(missing_ok=True)


def _source(cfg: Config, resume: str | None) -> str | None:
    """The checkpoint to go on from; nothing if none is asked for, or there."""
    if resume != 'auto':
        return resume
    found = latest_checkpoint(cfg.work_dir)
    return found and str(found)


def _resume_from(cfg: Config, resume: str | None, source: str | None) -> None:
    if source is None:
        if resume == 'auto':
            cfg.resume = False
            print_log(f'nothing to resume in {cfg.work_dir!r}: training starts from the beginning', logger='current')
        return
    if resume == source and is_main_process():
        read_checkpoint(source, cfg.trust_checkpoint)  # says at once what is wrong with it
    cfg.resume, cfg.load_from = True, source


def _use_amp(cfg: Config) -> None:
    """float16 with a scaled loss on accelerators, bfloat16 on CPUs."""
    optim_wrapper = cfg.optim_wrapper
    if kind_of(optim_wrapper) not in ('OptimWrapper', 'AmpOptimWrapper', 'CpuAmpOptimWrapper'):
        raise ValueError(f'--amp works with OptimWrapper; the config has {optim_wrapper.type}')
    if get_device() == 'cpu' and has_regions(cfg.model):
        raise ValueError(
            "--amp on a CPU is bfloat16, which mmcv's operators for regions do not take: "
            f'train {cfg.model.type} without it'
        )
    if get_device() == 'cpu':
        optim_wrapper.type = 'mmsoft.CpuAmpOptimWrapper'
        optim_wrapper.pop('loss_scale', None)
    else:
        optim_wrapper.type = 'AmpOptimWrapper'
        optim_wrapper.setdefault('loss_scale', 'dynamic')


def _use_float32(cfg: Config) -> None:
    kept = ('optimizer', 'paramwise_cfg', 'clip_grad', 'constructor', 'accumulative_counts')
    options = {key: value for key, value in cfg.optim_wrapper.items() if key in kept}
    cfg.optim_wrapper = dict(options, type='OptimWrapper')
    print_log(
        "the config's AmpOptimWrapper needs a GPU: this run computes in float32; --amp takes bfloat16",
        logger='current',
        level=logging.WARNING,
    )


def _report_data(cfg: Config, *modes: str, classes: bool = True) -> None:
    """One process looks; what it finds missing stops all, the others without a word."""
    problem = None
    if is_main_process():
        try:
            for remark in check_data(cfg, *modes, classes=classes):
                print_log(remark, logger='current', level=logging.WARNING)
        except (OSError, ValueError, RuntimeError) as error:
            problem = error
    end_together(problem)


def _check_work_dir(work_dir: str) -> None:
    probe = Path(work_dir, f'.writable.{os.getpid()}')
    try:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b'x' * 4096)
        probe.unlink()
    except OSError as error:
        raise OSError(
            f'the work directory {work_dir!r} cannot be written: {error}; name another one with --work-dir'
        ) from error


def _start_alone(work_dir: str) -> FileLock | None:
    """The lock of the work directory, for the process that writes there, after it has cleared away what was left."""
    if not is_main_process():
        return None
    if json_text(work_dir) != work_dir:
        raise ValueError(f'{work_dir!r} is not UTF-8, and MMEngine takes down no such name: name another --work-dir')
    lock = lock_work_dir(work_dir)
    for partial in [*Path(work_dir).glob(f'*.pth{PARTIAL}'), Path(work_dir, ROOM)]:
        partial.unlink(missing_ok=True)  # of a run that was killed while it wrote
    return lock


def _check_room(runner: Runner) -> None:
    """Raise unless a checkpoint fits on the disk: weights, their average, and two moments of those that are trained."""
    if not is_main_process():
        return
    averages = any(isinstance(hook, (AverageWeights, EMAHook)) for hook in runner.hooks)
    size = (1 + averages) * _bytes(runner.model.state_dict().values()) + 2 * _bytes(
        p for p in runner.model.parameters() if p.requires_grad
    )
    probe = Path(runner.work_dir, ROOM)
    try:
        _reserve(probe, size)
    except OSError as error:
        raise OSError(
            f'a checkpoint of this model takes {size / 2**20:.0f} MiB, for which {runner.work_dir!r} has no room '
            f'({error}); make room or name another --work-dir'
        ) from error
    finally:
        probe.unlink(missing_ok=True)


def _reserve(path: Path, size: int) -> None:
    """Take so many bytes of the disk, or raise an OSError; macOS and Windows can only be asked what is free."""
    with path.open('wb') as file:
        if hasattr(os, 'posix_fallocate'):
            os.posix_fallocate(file.fileno(), 0, size)  # also sees quotas and limits
        elif shutil.disk_usage(path.parent).free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def demo_report(runner: Runner) -> dict[str, Any]:
    """Draw a contact sheet of predictions and the curves of a finished demo; where they are."""
    model = next((hook.average.module for hook in runner.hooks if isinstance(hook, AverageWeights)), None)
    model = model or unwrapped(runner.model)
    model.eval()
    loader, pictures = runner.val_dataloader, []
    for index in np.linspace(0, len(loader.dataset) - 1, 12).round().astype(int).tolist():
        with torch.no_grad():
            (sample,) = model.test_step(loader.collate_fn([loader.dataset[index]]))
        image = mmcv.imread(sample.img_path)
        pictures.append(task_of(runner.cfg).draw(image, sample, loader.dataset.metainfo, score_thr=0.4))
    sheet, curves = Path(runner.work_dir, 'predictions.png'), Path(runner.work_dir, 'curves.png')
    contact_sheet(pictures, sheet)
    plot_curves([runner.work_dir], curves)
    return dict(predictions=sheet, curves=curves)
