"""Training and testing of classifiers in MMEngine's Runner; what is special to ImageNet's recipes is timm's."""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from mmengine.dist import all_reduce
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.runner import Runner
from torch import Tensor, nn

from mmsoft.checkpoints import EMA_KEY, CheckpointError
from mmsoft.models.options import options_of
from mmsoft.registry import HOOKS, METRICS, MODELS
from mmsoft.versions import require
from mmsoft.weights.sources import locate

from .resuming import unwrapped
from .schedules import SHARE
from .taught import Mesa, answer, teacher_of

# Of a run, the most that an average of weights looks back: in a short run, the recipe's would be of its start.
LONGEST_AVERAGE = 0.1


@MODELS.register_module()
class ImageClassifier(BaseModel):
    """A classifier with its loss, as the Runner calls it.

    Args:
        backbone: A model that gives logits and tells ``num_classes``.
        smoothing: Share of a label that is spread over all classes.
        mixup: Options of timm.data.Mixup (``mixup_alpha``, ``cutmix_alpha``, ...); None mixes nothing.
        teacher: Options of :class:`mmsoft.engine.taught.Teacher`, a trained classifier that gets the same pictures, or
            its source alone; None for labels alone.
        mesa: Options of :class:`Mesa`, by which predictions stay near those of the averaged weights; None for none.
    """

    def __init__(
        self,
        backbone: dict,
        smoothing: float = 0.1,
        mixup: Mapping[str, Any] | None = None,
        teacher: Mapping[str, Any] | str | None = None,
        mesa: Mapping[str, Any] | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        require('timm')
        from timm.data import Mixup
        from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy

        if not 0 <= smoothing < 1:
            raise ValueError(f'smoothing must be at least 0 and below 1; got {smoothing!r}')
        super().__init__(data_preprocessor, init_cfg)
        self.backbone = MODELS.build(backbone)
        self.teacher = teacher_of(teacher)
        self.mesa = None if mesa is None else Mesa(**mesa)
        num_classes = self.backbone.num_classes
        self.mixup = mixup and Mixup(label_smoothing=smoothing, num_classes=num_classes, **mixup)
        self.loss = SoftTargetCrossEntropy() if mixup else LabelSmoothingCrossEntropy(smoothing)

    def forward(
        self, inputs: Tensor, data_samples: Sequence[Any] | None = None, mode: str = 'tensor'
    ) -> Tensor | dict[str, Tensor] | list[Any]:
        """Images (B, 3, H, W) -> logits, ``dict(loss=...)``, or the samples with ``pred_scores`` (classes,)."""
        if isinstance(inputs, list):
            inputs = torch.stack(inputs)
        if mode == 'tensor':
            return self.backbone(inputs)
        if mode == 'predict':
            for sample, scores in zip(data_samples, self.backbone(inputs).float().softmax(-1), strict=True):
                sample.pred_scores = scores
            return list(data_samples)
        targets = torch.tensor([sample.gt_label for sample in data_samples]).to(inputs.device, non_blocking=True)
        if self.mixup:
            if len(inputs) % 2:
                raise ValueError(
                    f'mixup pairs images: train_dataloader.batch_size must be even; got a batch of {len(inputs)}'
                )
            inputs, targets = self.mixup(inputs, targets)
        tokens, logits = answer(self.backbone, inputs, bool(self.teacher and self.teacher.maps))
        logits = logits.float()
        loss = self.loss(logits, targets)
        if self.teacher:
            loss = self.teacher.add(loss, tokens, logits, inputs)
        if self.mesa:
            loss = self.mesa.add(loss, logits, inputs)
        return dict(loss=loss)

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        if self.teacher and self.teacher.built:
            self.teacher.built._apply(fn)
        return super()._apply(fn, recurse)


def check_teacher(model: Mapping[str, Any], needed: bool) -> None:
    """Raise where a config's model has a wrong ``teacher``, or one that is ``needed`` without its weights."""
    options, kind = model.get('teacher'), model.get('type')
    if not options:
        return
    if isinstance(kind, str):
        with MODELS.switch_scope_and_registry(None) as registry:  # of the config's library
            kind = registry.get(kind)
    if not isinstance(kind, type):
        return
    if 'teacher' not in options_of(kind):
        raise ValueError(f'model.teacher is an option of classifiers; {kind.__name__} has none: leave it out')
    teacher = teacher_of(options) if issubclass(kind, ImageClassifier) else None
    if needed and teacher and teacher.checkpoint:
        locate(teacher.checkpoint)


@METRICS.register_module()
class TopAccuracy(BaseMetric):
    """Share of pictures, in per cent, whose label is the best prediction (``top1``) or among the best k."""

    default_prefix = 'accuracy'

    def __init__(self, topk: Sequence[int] = (1, 5), **options: Any) -> None:
        super().__init__(**options)
        self.topk = tuple(topk)

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        scores = torch.stack([sample['pred_scores'] for sample in data_samples])
        labels = torch.tensor([sample['gt_label'] for sample in data_samples]).to(scores.device)
        best = scores.topk(min(max(self.topk), scores.shape[1])).indices  # (B, k)
        hits = best == labels.unsqueeze(1)
        self.results += torch.stack([hits[:, :k].any(1) for k in self.topk], 1).tolist()

    def compute_metrics(self, results: list) -> dict[str, float]:
        means = 100 * torch.tensor(results, dtype=torch.float64).mean(0)
        return {f'top{k}': mean for k, mean in zip(self.topk, means.tolist(), strict=True)}


@HOOKS.register_module()
class CosineSchedule(Hook):
    """timm's cosine over the whole training, by iterations, after a linear warm-up.

    ``warmup_lr`` and ``min_lr`` belong to the lr of the config and are scaled with it for another batch.
    The lr depends on the config and the iteration alone, also in a run that is resumed.
    """

    priority = 'LOW'

    def __init__(self, warmup_epochs: float, warmup_lr: float = 1e-6, min_lr: float = 0.0) -> None:
        self.warmup_epochs, self.warmup_lr, self.min_lr = warmup_epochs, warmup_lr, min_lr

    def before_run(self, runner: Runner) -> None:
        if isinstance(runner.optim_wrapper, OptimWrapper):  # not in a test
            self.lrs = [group['lr'] for group in runner.optim_wrapper.optimizer.param_groups]

    def before_train(self, runner: Runner) -> None:
        from timm.scheduler import CosineLRScheduler

        optimizer, warmup = runner.optim_wrapper.optimizer, self._check(runner)
        for group, lr in zip(optimizer.param_groups, self.lrs, strict=True):
            group['initial_lr'] = lr  # a checkpoint has brought its own
        scaling = runner.cfg.get('auto_scale_lr') or {}
        scale = 1.0
        if scaling.get('enable'):
            batch = runner.world_size * runner.train_dataloader.batch_size
            scale = batch * runner.cfg.optim_wrapper.get('accumulative_counts', 1) / scaling['base_batch_size']
        self.scheduler = CosineLRScheduler(
            optimizer,
            t_initial=runner.max_iters,
            lr_min=self.min_lr * scale,
            warmup_t=warmup,
            warmup_lr_init=self.warmup_lr * scale,
            t_in_epochs=False,
        )
        self.scheduler.step_update(runner.iter)

    def _check(self, runner: Runner) -> int:
        """Iterations of warm-up, if they and the lr leave room for the cosine."""
        loader, lr = runner.train_dataloader, runner.cfg.optim_wrapper.optimizer.lr
        if not len(loader):
            raise ValueError(
                f'the {len(loader.dataset)} training pictures are less than one batch of {loader.batch_size} in '
                f'{runner.world_size} processes: set --cfg-options train_dataloader.batch_size'
            )
        if self.min_lr >= lr:
            raise ValueError(f'the lr would rise from {lr} to min_lr {self.min_lr}: set custom_hooks.0.min_lr below it')
        warmup = round(self.warmup_epochs * len(loader))
        if warmup >= runner.max_iters:
            warmup = runner.max_iters // SHARE
            runner.logger.warning(
                f'{self.warmup_epochs} epochs of warm-up are as long as the run: it takes {warmup} iterations instead; '
                'custom_hooks.0.warmup_epochs says otherwise'
            )
        return warmup

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.scheduler.step_update(runner.iter + 1)


@HOOKS.register_module()
class AverageWeights(Hook):
    """timm's moving average of the weights, which is validated and saved beside them as ``state_dict_ema``.

    ``decay`` is for ``batch`` images an iteration, if given, and the corresponding power of it for another number. In
    a run of n iterations it is at most 1 - 10 / n. ``options`` are those of timm.utils.ModelEmaV3
    besides. In several processes, BatchNorm's statistics are averaged over them after each epoch, in the
    model and in the average: what is validated is what is saved.
    """

    priority = 'ABOVE_NORMAL'  # before validation and checkpoints

    def __init__(self, decay: float = 0.9999, batch: int | None = None, **options: Any) -> None:
        self.decay, self.batch, self.options, self.resumed = decay, batch, options, None

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        if runner._resume:
            self.resumed = checkpoint.get(EMA_KEY)
            if self.resumed is None:
                raise CheckpointError(
                    f'the checkpoint to resume has no {EMA_KEY}, the average that this config keeps: it is of a run '
                    'without one; take out the hook AverageWeights, or start from its weights with --fine-tune'
                )

    def before_train(self, runner: Runner) -> None:
        from timm.utils import ModelEmaV3

        images = runner.train_dataloader.batch_size * runner.world_size
        decay = self.decay ** (images / self.batch) if self.batch else self.decay
        decay = min(decay, 1 - 1 / max(LONGEST_AVERAGE * runner.max_iters, 1))
        self.average = ModelEmaV3(unwrapped(runner.model), decay=decay, **self.options)
        if self.resumed is not None:
            self.average.module.load_state_dict(self.resumed)
        self.mesa: Mesa | None = getattr(unwrapped(runner.model), 'mesa', None)
        if self.mesa:
            self.mesa.average = self.average.module

    def before_train_epoch(self, runner: Runner) -> None:
        if self.mesa:
            self.mesa.active = runner.epoch >= self.mesa.begin * runner.max_epochs

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        # at its first step timm takes the weights as they are
        self.average.update(unwrapped(runner.model), step=runner.iter + 1)

    def after_train_epoch(self, runner: Runner) -> None:
        if runner.world_size > 1:
            for statistic in _statistics(runner.model, self.average.module):
                all_reduce(statistic, op='mean')

    def before_val_epoch(self, runner: Runner) -> None:
        if hasattr(self, 'average'):  # not where a checkpoint is only validated
            self.trained, runner.model = runner.model, self.average.module

    def after_val_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        if hasattr(self, 'average'):
            runner.model = self.trained

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint[EMA_KEY] = {name: value.cpu() for name, value in self.average.module.state_dict().items()}


def _statistics(*modules: torch.nn.Module) -> Iterator[Tensor]:
    """Means and variances of BatchNorm."""
    for module in modules:
        yield from (buffer for buffer in module.buffers() if buffer.is_floating_point())


@HOOKS.register_module()
class LogThroughput(Hook):
    """Images a second of all processes, loading included, in the log."""

    def before_train_epoch(self, runner: Runner) -> None:
        self.last = time.perf_counter()

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        now = time.perf_counter()
        rate = len(data_batch['inputs']) * runner.world_size / (now - self.last)
        runner.message_hub.update_scalar('train/images_per_s', rate)
        self.last = now
