"""What is done around every run: seeds, lasting checkpoints, bad losses, files that could not be read."""

import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
import torch
from mmengine.dist import all_reduce, is_main_process
from mmengine.hooks import CheckpointHook, Hook
from mmengine.runner import Runner

from mmsoft.datasets.reading import SIZE_IF_UNKNOWN, FaultRecord, read_faults
from mmsoft.datasets.seeding import mix_seeds
from mmsoft.files import json_names, places_below
from mmsoft.ops.dispatch import reads_at_once
from mmsoft.registry import HOOKS
from mmsoft.visualization import write_picture

from .saving import collect_for
from .tasks import task_of

EARLIER = 'saved before this run was resumed'


class InvalidLossError(RuntimeError):
    """A loss that is not a finite number."""


@HOOKS.register_module()
class SeedEachIteration(Hook):
    """Dropout, stochastic depth and sampled proposals depend on the run's seed, the iteration and the rank alone."""

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        seed = mix_seeds(runner.seed, runner.iter, runner.rank)
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)


@HOOKS.register_module()
class AverageLosses(Hook):
    """Losses are logged as the mean over all processes: the curve of a run does not depend on their number."""

    priority = 0  # before MMEngine takes the losses down

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        if runner.world_size == 1:
            return
        names = [name for name, value in outputs.items() if isinstance(value, torch.Tensor)]
        means = torch.stack([outputs[name].detach().float() for name in names])
        all_reduce(means, op='mean')
        outputs.update(zip(names, means, strict=True))


@HOOKS.register_module()
class StopAtInvalidLoss(Hook):
    """Stop at a loss that is NaN or infinite, in all processes, and save the names of each one's files.

    The losses of ``interval`` iterations are looked at together, so that a GPU need not wait each
    time; before a checkpoint is saved there is a look as well.
    """

    priority = 'HIGH'  # before the checkpoint hook

    def __init__(self, interval: int = 50) -> None:
        self.interval, self.pending = interval, []

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        loss = outputs['loss'].detach()
        files = [sample.img_path for sample in data_batch['data_samples']]
        self.pending.append((runner.iter, files, torch.isfinite(loss).all()))
        if reads_at_once(loss) or len(self.pending) >= self.interval:
            self._look(runner)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        self._look(runner)

    def _look(self, runner: Runner) -> None:
        pending, self.pending = self.pending, []
        if not pending:
            return
        finite = torch.stack([flag for _, _, flag in pending]).tolist()
        if all(finite):
            return
        iteration, files, _ = pending[finite.index(False)]
        report = Path(runner.work_dir, f'invalid_loss_rank{runner.rank}.json')
        report.write_text(json.dumps(dict(iteration=iteration + 1, **json_names('files', files)), indent=1) + '\n')
        raise InvalidLossError(
            f'the loss of iteration {iteration + 1} is not a finite number; its files are in {str(report)!r}. '
            'Look at their annotations, or train with a lower lr, clipped gradients or without --amp; '
            'checkpoints saved before are sound'
        )


@HOOKS.register_module()
class LastingCheckpointHook(CheckpointHook):
    """With ``max_keep_ckpts``, the oldest checkpoint goes after the newest is written, not before.

    A run that goes on saves wherever an uninterrupted one would: once there is a last checkpoint, with each best one.
    """

    def before_train(self, runner: Runner) -> None:
        super().before_train(runner)
        if runner._resume and runner.message_hub.runtime_info.get('last_ckpt'):
            self.last_ckpt = EARLIER

    def after_train(self, runner: Runner) -> None:
        self.last_ckpt = None if self.last_ckpt == EARLIER else self.last_ckpt  # that is not to be published
        super().after_train(runner)

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        keep, gone = self.max_keep_ckpts, []
        if keep > 0 and step not in self.keep_ckpt_ids:
            if len(self.keep_ckpt_ids) == keep:
                gone.append(self.keep_ckpt_ids.popleft())
            self.keep_ckpt_ids.append(step)
            runner.message_hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))  # saved with the checkpoint
        self.max_keep_ckpts, runner.collected = -1, collect_for(runner)
        try:
            super()._save_checkpoint_with_step(runner, step, meta)
        finally:
            self.max_keep_ckpts, runner.collected = keep, {}
        for old in gone if is_main_process() else ():
            Path(self.out_dir, self.filename_tmpl.format(old)).unlink(missing_ok=True)


@HOOKS.register_module()
class ReportFaults(Hook):
    """Says how many files could not be read, when that number has grown."""

    def __init__(self, record: str) -> None:
        self.record, self.reported = record, 0

    def _report(self, runner: Runner) -> None:
        faults = read_faults(self.record) if is_main_process() else {}
        if len(faults) > self.reported:
            file, fault = list(faults.items())[-1]
            runner.logger.warning(
                f'{len(faults)} files could not be used so far, all listed in {self.record}; the last: {file} ({fault})'
            )
            self.reported = len(faults)

    def after_train_epoch(self, runner: Runner) -> None:
        self._report(runner)

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._report(runner)

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        self._report(runner)


@HOOKS.register_module()
class DrawPredictions(Hook):
    """Draws every tested image with its predictions into a folder: below it, wherever the data's names lead."""

    def __init__(self, folder: str, score_thr: float = 0.3) -> None:
        self.folder, self.score_thr = Path(folder), score_thr
        self.places, self.faults, self.lost = {}, FaultRecord(None), None

    def before_test_epoch(self, runner: Runner) -> None:
        dataset = runner.test_dataloader.dataset
        self.draw = task_of(runner.cfg).draw
        prefix = getattr(dataset, 'data_prefix', {})
        images = prefix.get('img') or prefix.get('img_path') or '.'
        paths = [dataset.get_data_info(index)['img_path'] for index in range(len(dataset))]
        wanted = {path: os.path.splitext(_below(images, path))[0] + '.jpg' for path in paths}  # noqa: PTH122
        self.places = places_below(self.folder, wanted, paths)

    def after_test_iter(
        self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Sequence | None = None
    ) -> None:
        meta = runner.test_dataloader.dataset.metainfo
        for sample in () if self.lost else outputs:
            try:
                picture = self.draw(_image(sample), sample, meta, self.score_thr)
                write_picture(picture, self.places[sample.img_path])
                self.faults.none()
            except Exception as error:  # metrics are not lost for a drawing
                runner.logger.warning(f'{sample.img_path} cannot be drawn: {type(error).__name__}: {error}')
                self._count(sample.img_path, error)

    def _count(self, path: str, error: Exception) -> None:
        """Too many faults, or a full disk, end the drawing."""
        try:
            self.faults.add(path, error, 'drawing')
        except (OSError, RuntimeError) as end:
            self.lost = end


def _below(folder: str, path: str) -> str:
    try:
        return os.path.relpath(path, folder)
    except ValueError:  # on another drive
        return path


def _image(sample: Any) -> np.ndarray:
    """The file of a sample; black if it is broken, as the model has seen it."""
    try:
        image = mmcv.imread(sample.img_path)
    except Exception:  # decoders fail in ways of their own
        image = None
    return np.zeros((*getattr(sample, 'ori_shape', SIZE_IF_UNKNOWN), 3), np.uint8) if image is None else image
