"""Runners of a config as it is written: around its loaders, model and hooks they build what every run needs."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import ConfigDict
from mmengine.device import get_device
from mmengine.hooks import EMAHook, Hook
from mmengine.runner import BaseLoop
from torch import nn
from torch.utils.data import DataLoader

from mmsoft.datasets.layout import leaf_datasets

from .config import trust_pretrained, without_pretrained
from .hooks import AverageLosses, ReportFaults, SeedEachIteration, StopAtInvalidLoss
from .parts import kind_of, pipelines
from .runner import Runner, was_trained_in
from .saving import MakeUpValidation, SaveAnywhere
from .schedules import fitted
from .tasks import task_of
from .telling import TellLength
from .watching import TellPlace


class GuardedRunner(Runner):
    """A file that cannot be read goes on record and ends nothing; weights that are about to be replaced are not loaded.

    The config stays as it is written, and so do its copies in the work directory and in checkpoints.
    """

    faults = 'faults.jsonl'  # in the work directory: files that could not be read

    @property
    def record(self) -> str:
        return str(Path(self.cfg.work_dir, self.faults))

    def build_dataloader(
        self, dataloader: DataLoader | Mapping, seed: int | None = None, diff_rank_seed: bool = False
    ) -> DataLoader:
        loader = self.guard(dataloader) if isinstance(dataloader, Mapping) else dataloader
        return super().build_dataloader(loader, seed, diff_rank_seed)

    def guard(self, loader: Mapping, training: bool = False) -> ConfigDict:
        """With loading steps that keep the record, and without options that have no effect here."""
        loader = read_safely(loader, self.record, training, task_of(self.cfg).label_count(self.cfg))
        if not loader.get('num_workers'):
            loader.persistent_workers = False
        if get_device() == 'cpu':
            loader.pop('pin_memory', None)
        return loader

    def build_model(self, model: nn.Module | Mapping) -> nn.Module:
        if isinstance(model, Mapping):
            cfg = ConfigDict(model=copy.deepcopy(model))
            if self.gets_weights():
                without_pretrained(cfg)
            if self.cfg.get('trust_checkpoint'):
                trust_pretrained(cfg)
            model = cfg.model
        return super().build_model(model)

    def gets_weights(self) -> bool:
        """Whether a checkpoint follows, so that the model need not load pretrained weights."""
        return bool(self._resume or self._load_from)

    def register_hooks(self, default_hooks: dict | None = None, custom_hooks: list | None = None) -> None:
        """The config's, and each of ours of which the config has none."""
        super().register_hooks(default_hooks, custom_hooks)
        for hook in self.own_hooks():
            if not any(type(other) is type(hook) for other in self.hooks):
                self.register_hook(hook)

    def own_hooks(self) -> list[Hook]:
        return [ReportFaults(self.record)]


class EvaluationRunner(GuardedRunner):
    """Tests a checkpoint, with metrics of its own; a config that a training has left in the work directory stays."""

    faults = 'test_faults.jsonl'

    def __init__(self, *args: Any, **options: Any) -> None:
        """The checkpoint to test is named: whatever the config starts from or goes on with is not read."""
        super().__init__(*args, **dict(options, resume=False, load_from=None))

    def register_hooks(self, default_hooks: dict | None = None, custom_hooks: list | None = None) -> None:
        """Without MMEngine's averages, which only a run has: a checkpoint holds them in the place of its weights."""
        super().register_hooks(default_hooks, custom_hooks)
        self._hooks = [hook for hook in self._hooks if not isinstance(hook, EMAHook)]

    def dump_config(self) -> None:
        if not was_trained_in(self.work_dir):
            super().dump_config()

    def take_model(self, model: Mapping) -> None:
        """In place of the config's, which stays as it is written."""
        if model != self.cfg.model:
            self.model = self.wrap_model(self.cfg.get('model_wrapper_cfg'), self.build_model(model))

    def evaluate_with(self, metrics: list[Mapping]) -> None:
        self._test_evaluator = metrics

    def begin_anew(self, loader: Mapping) -> None:
        """The next test is on this data."""
        self._test_dataloader, self._test_loop = loader, self.cfg.test_cfg

    def gets_weights(self) -> bool:
        return True


class TrainingRunner(GuardedRunner):
    """Random numbers depend on the run's seed and a place in the run; any iteration can be the last.

    ``cfg.save_every`` is a time or a number of iterations between checkpoints besides those of the config.
    """

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Augmentations depend on a sample's place in the run, not on workers and interruptions."""
        written = self._train_dataloader
        if isinstance(written, Mapping):
            self._train_dataloader = self.build_seeded(written)
        try:
            return super().build_train_loop(loop)
        finally:
            self._train_dataloader = written  # which tells MMEngine the batch size

    def build_seeded(self, loader: Mapping) -> DataLoader:
        loader = self.guard(loader, training=True)
        loader.sampler = dict(type='mmsoft.SeededSampler', sampler=loader.sampler)
        loader.dataset = dict(type='mmsoft.SeededDataset', dataset=loader.dataset)
        return Runner.build_dataloader(loader, self.seed, self._randomness_cfg.get('diff_rank_seed', False))

    def build_param_scheduler(self, scheduler: Any) -> Any:
        schedule = fitted(scheduler, super()._build_param_scheduler, self.optim_wrapper, self.train_loop)
        return super().build_param_scheduler(schedule)

    def register_hook(self, hook: Hook | dict, priority: Any = None) -> None:
        """The checkpoint hook removes an old file once the new one is written."""
        if isinstance(hook, Mapping) and kind_of(hook) == 'CheckpointHook':
            hook = dict(hook, type='mmsoft.LastingCheckpointHook')
        if isinstance(hook, Mapping) and 'switch_pipeline' in hook:  # of the last epochs
            options = dict(record=self.record, training=True, num_classes=task_of(self.cfg).label_count(self.cfg))
            hook = dict(hook, switch_pipeline=[_safe(step, options) for step in hook['switch_pipeline']])
        super().register_hook(hook, priority)

    def own_hooks(self) -> list[Hook]:
        ours = [
            SeedEachIteration(),
            AverageLosses(),
            StopAtInvalidLoss(),
            MakeUpValidation(),
            TellPlace(),
            TellLength(),
        ]
        return [*super().own_hooks(), *ours, SaveAnywhere(self.cfg.get('save_every'))]


def read_safely(
    loader: Mapping, record: str | Path, training: bool = False, num_classes: int | None = None
) -> ConfigDict:
    """A copy whose loading steps are wrapped in ``mmsoft.ReadSafely``, which keeps the record; class folders do so."""
    loader = ConfigDict(copy.deepcopy(dict(loader)))
    for leaf in leaf_datasets(loader.dataset):
        if kind_of(leaf) == 'ClassFolders':
            leaf.record = str(record)
    options = dict(record=str(record), training=training, num_classes=num_classes)
    for pipeline in pipelines(loader.dataset) if isinstance(loader.dataset, Mapping) else ():
        pipeline[:] = [_safe(step, options) for step in pipeline]
    return loader


def _safe(step: Mapping, options: Mapping) -> Mapping:
    loads = kind_of(step) in ('LoadImageFromFile', 'LoadAnnotations')
    return ConfigDict(type='mmsoft.ReadSafely', loader=step, **options) if loads else step
