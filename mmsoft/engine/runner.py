"""MMEngine's Runner, made to read checkpoints safely, to write them whole, and to train on CPUs in many processes."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from mmengine import runner
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import is_main_process
from mmengine.hooks import CheckpointHook
from mmengine.logging import MMLogger
from mmengine.model import is_model_wrapper, revert_sync_batchnorm
from mmengine.optim import OptimWrapper
from mmengine.registry import MODEL_WRAPPERS
from mmengine.runner import BaseLoop
from mmengine.runner.amp import autocast
from mmengine.visualization import Visualizer
from torch import nn
from torch.utils.data import DataLoader

import mmsoft
from mmsoft.checkpoints import EMA_KEY, CheckpointError, load_weights, names_for, read_checkpoint, read_state_dict
from mmsoft.registry import OPTIM_WRAPPERS
from mmsoft.weights.meta import known_meta
from mmsoft.weights.sources import NOTE

from .conditions import as_configured, check_optimizer, check_same, forgetful, listed, settings_of
from .files import read_without_code
from .logs import LogKeeper
from .loops import LOOPS, EpochLoop
from .preemption import protect
from .resuming import average_of_mmengine, own_files_only, take_gradients, take_own_buffers

PARTIAL = '.part'  # a checkpoint while it is being written


class FormattedOnce(Config):
    """MMEngine asks for the text at least five times, and at each checkpoint; yapf takes long for it."""

    @classmethod
    def of(cls, cfg: Config) -> 'FormattedOnce':
        made = cls.__new__(cls)
        made.__setstate__(cfg.__getstate__())
        return made

    @property
    def pretty_text(self) -> str:
        plain = repr(self.to_dict())
        if self.__dict__.get('_formatted', ('',))[0] != plain:
            self.__dict__['_formatted'] = plain, super().pretty_text
        return self.__dict__['_formatted'][1]


class Runner(runner.Runner):
    """``cfg.trust_checkpoint`` permits pickles that run code; everything else is MMEngine's.

    ``saved_iter`` is the iteration of the last checkpoint that can be resumed, ``collected`` what all processes give to
    the next one, ``config_values`` what its config is known by. ``fresh``, where given, are the only tensors that
    weights to start from need not have.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.saved_iter, self.collected, self.config_values, self.fresh = 0, {}, {}, None
        super().__init__(*args, **options)

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """Our loops for MMEngine's own two."""
        if isinstance(loop, dict) and ('type' in loop) != ('by_epoch' in loop):
            kind = loop.get('type') or ('EpochBasedTrainLoop' if loop['by_epoch'] else 'IterBasedTrainLoop')
            ours = LOOPS.get(getattr(kind, '__name__', kind))
            if ours:
                loop = dict({key: value for key, value in loop.items() if key != 'by_epoch'}, type=ours)
        return super().build_train_loop(loop)

    @staticmethod
    def build_dataloader(*args: Any, **options: Any) -> DataLoader:
        """Its workers leave signals to this process."""
        loader = runner.Runner.build_dataloader(*args, **options)
        protect(loader)
        return loader

    def build_logger(self, *args: Any, **kwargs: Any) -> MMLogger:
        """With logs that fail in a sentence."""
        logger = super().build_logger(*args, **kwargs)
        self.log_keeper = LogKeeper(logger.handlers)
        return logger

    def build_visualizer(self, *args: Any, **kwargs: Any) -> Visualizer:
        visualizer = super().build_visualizer(*args, **kwargs)
        self.log_keeper.watch(visualizer)
        return visualizer

    @classmethod
    def from_cfg(cls, cfg: Config) -> 'Runner':
        """Files that the config names are read as its checkpoints are."""
        read_without_code(cfg.get('trust_checkpoint', False))
        return super().from_cfg(FormattedOnce.of(cfg))

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """Also for several processes without accelerators, where DDP takes no devices and there is no SyncBatchNorm."""
        if not self.distributed or get_device() != 'cpu' or is_model_wrapper(model):
            return super().wrap_model(model_wrapper_cfg, model)
        self.logger.info('on CPUs, SyncBatchNorm becomes BatchNorm: each process has statistics of its own')
        options = dict(
            type='MMDistributedDataParallel',
            broadcast_buffers=False,
            find_unused_parameters=self.cfg.get('find_unused_parameters', False),
        )
        wrapper = {**options, **(model_wrapper_cfg or {}), 'device_ids': None}
        return MODEL_WRAPPERS.build(wrapper, default_args=dict(module=revert_sync_batchnorm(model)))

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """Batches whose gradients are added up are one."""
        if auto_scale_lr and auto_scale_lr.get('enable'):
            base = auto_scale_lr['base_batch_size'] / self.cfg.optim_wrapper.get('accumulative_counts', 1)
            auto_scale_lr = dict(auto_scale_lr, base_batch_size=base)
        super().scale_lr(optim_wrapper, auto_scale_lr)

    def load_checkpoint(
        self, filename: str, map_location: Any = 'cpu', strict: bool = False, revise_keys: list = ((r'^module\.', ''),)
    ) -> dict:
        """Read without running code from the file; weights that do not fit are an error with a table.

        ``strict``, and resuming, ask for every tensor. Without it, as with ``load_from`` for another
        data set, half of the model must match.
        """
        checkpoint = read_checkpoint(filename, trust=self.cfg.get('trust_checkpoint', False))
        if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get('state_dict'), Mapping):
            checkpoint = dict(state_dict=read_state_dict(checkpoint))
        if self._resume:
            _check_resumable(checkpoint)
            if self.optim_wrapper is not None:
                self._compare(filename, checkpoint)
        self.call_hook('after_load_checkpoint', checkpoint=checkpoint)
        if self._resume:
            take_own_buffers(checkpoint, self.rank, self.world_size, average_of_mmengine(self))
        model = self.model.module if is_model_wrapper(self.model) else self.model
        weights = read_state_dict(choose_weights(checkpoint, resuming=self._resume))
        for pattern, replacement in revise_keys:
            weights = {
                re.sub(pattern, replacement, name): value for name, value in weights.items() if isinstance(name, str)
            }
        weights = names_for(model, weights)
        shapes = {name: value.shape for name, value in model.state_dict().items()}
        if not self.fresh and {name: value.shape for name, value in weights.items()} == shapes:
            model.load_state_dict(weights)
            self.logger.info(f'all {len(shapes)} tensors of the model loaded from {filename}')
        else:
            fresh = None if self._resume else self.fresh
            strict = strict or self._resume or fresh is not None
            load_weights(model, weights, source=str(filename), strict=strict, fresh=sorted(fresh or ()))
        self._has_loaded = True
        return checkpoint

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Go on with the run that wrote this checkpoint."""
        self._resume = True
        try:
            super().resume(filename, *args, **kwargs)
            self._place(filename)
        except CheckpointError:
            raise
        except Exception as error:  # torch and MMEngine take what they are given
            raise CheckpointError(
                f'checkpoint {str(filename)!r} cannot be resumed: its state is not that of this run '
                f'({type(error).__name__}: {str(error)[:300]}); '
                'start from its weights with --cfg-options load_from=<file>'
            ) from error

    def _place(self, filename: str) -> None:
        """Where in the run the checkpoint lies, and what is to be done there."""
        checkpoint, changed, groups = vars(self).pop('_resumed')
        take_gradients(checkpoint, self.model)
        places = [hook.out_dir for hook in self.hooks if isinstance(hook, CheckpointHook) and hook.out_dir]
        folders = [self.work_dir, *places, *(Path(place, Path(self.work_dir).name) for place in places)]
        own_files_only(self.message_hub.runtime_info, filename, folders)
        loop = self.train_loop
        if isinstance(loop, EpochLoop):
            done = self._batches_done(checkpoint['meta'])
            if 'epoch_length' in changed:
                loop._iter = self.epoch * len(loop.dataloader) + done
            loop.first = self.iter - done
        if changed:
            as_configured(self, groups)
        if self.iter > self.max_iters:
            raise CheckpointError(
                f'checkpoint {str(filename)!r} cannot be resumed: it is of iteration {self.iter}, and this run ends '
                f'after {self.max_iters}'
            )
        self.saved_iter = self.iter
        names = forgetful(self.cfg)
        if names:
            self.logger.warning(
                f'no checkpoint holds what {", ".join(names)} remembers: this run may end with other weights than an '
                'uninterrupted one'
            )

    def _compare(self, filename: str, checkpoint: dict) -> None:
        """Raise unless the run that wrote this checkpoint was like this one, or may be another."""
        groups, saved = settings_of(self.optim_wrapper), checkpoint['meta'].get('mmsoft')
        try:
            changed = {}
            if saved is not None:
                by_epoch, anyway = isinstance(self.train_loop, EpochLoop), self.cfg.get('resume_anyway', False)
                changed = check_same(saved, self._conditions(), anyway, by_epoch)
            check_optimizer(checkpoint['optimizer'], self.optim_wrapper)
        except CheckpointError as error:
            raise CheckpointError(f'checkpoint {str(filename)!r} cannot be resumed: {error}') from None
        if saved is None:
            self.logger.info('the checkpoint does not say how its run was set up: it is resumed without a comparison')
        elif changed:
            self.logger.warning(f'this run goes on with other values: {listed(changed, "there", "here")}')
        self._resumed = checkpoint, changed, groups

    def _conditions(self) -> dict[str, Any]:
        """What a checkpoint says of this run."""
        loader = self.train_dataloader
        return dict(
            processes=self.world_size,
            epoch_length=len(loader),
            samples=len(loader.dataset),
            config=self.config_values,
        )

    def _batches_done(self, meta: dict) -> int:
        """Of the epoch that the checkpoint lies in."""
        length, saved = len(self.train_dataloader), meta.get('mmsoft')
        if saved is not None:
            return saved['done'] * length // saved['epoch_length']
        done = self.iter - self.epoch * length
        if 0 <= done <= length:
            return done
        self.logger.warning(f'its epochs had another length than {length}: epoch {self.epoch + 1} is begun anew')
        return 0

    def save_checkpoint(self, out_dir: str, filename: str, *args: Any, **kwargs: Any) -> None:
        """Write beside the target and rename: a checkpoint under its own name is always whole."""
        meta = kwargs['meta'] = dict(kwargs.get('meta') or {}, versions=_versions())
        if 'iter' in meta:  # saved by a hook of training
            loop = self.train_loop
            done = loop.done(meta['epoch'], meta['iter']) if isinstance(loop, EpochLoop) else 0
            meta['mmsoft'] = dict(done=done, **self._conditions())
            if kwargs.get('save_optimizer', True):
                self.saved_iter = meta['iter']
        if '://' in str(out_dir):  # a remote store makes objects whole by itself
            super().save_checkpoint(out_dir, filename, *args, **kwargs)
            return
        target = Path(out_dir, filename)
        partial = target.with_name(target.name + PARTIAL)
        try:
            super().save_checkpoint(out_dir, partial.name, *args, **kwargs)
            if is_main_process():
                with partial.open('rb+') as file:
                    os.fsync(file.fileno())
                partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise CheckpointError(
                f'checkpoint {str(target)!r} could not be written ({error}); earlier ones are intact: '
                'make room and go on with --resume auto'
            ) from error


def _versions() -> dict[str, str]:
    """What trains, for whoever gets the checkpoint."""
    found = {
        name: str(sys.modules[name].__version__)
        for name in ('torch', 'timm', 'mmengine', 'mmcv')
        if name in sys.modules
    }
    return dict(mmsoft=mmsoft.__version__, **found)


def choose_weights(checkpoint: dict, resuming: bool) -> dict:
    """Averaged weights (EMA) where training kept them, for they are the result; a resumed run goes on from its own."""
    averaged = None if resuming else checkpoint.get(EMA_KEY)
    return averaged if averaged and isinstance(averaged, Mapping) else checkpoint['state_dict']


def _check_resumable(checkpoint: dict) -> None:
    """Tell what a file of bare weights lacks; leave aside what was read as empty objects, and what could run."""
    lacking = {'meta', 'message_hub', 'optimizer'} - set(checkpoint)
    if lacking:
        raise CheckpointError(
            f'this checkpoint cannot be resumed: it has no {", ".join(sorted(lacking))}; '
            'start from its weights with --cfg-options load_from=<file>'
        )
    checkpoint['meta'] = known_meta(checkpoint['meta'])
    hub = checkpoint['message_hub']
    parts = (
        [hub.get(part) for part in ('resumed_keys', 'log_scalars', 'runtime_info')]
        if isinstance(hub, Mapping)
        else [None]
    )
    if not all(isinstance(part, Mapping) for part in parts):
        raise CheckpointError('this checkpoint cannot be resumed: its message_hub is not what MMEngine writes')
    # smoothed averages of the log, which start anew
    keys = hub['resumed_keys'].items()
    hub['resumed_keys'] = {key: value for key, value in keys if key not in hub['log_scalars'] and type(value) is bool}
    hub['log_scalars'] = {}


def was_trained_in(work_dir: str | Path) -> bool:
    """Whether a run has written checkpoints here."""
    return Path(work_dir, NOTE).is_file()


@OPTIM_WRAPPERS.register_module()
class CpuAmpOptimWrapper(OptimWrapper):
    """Mixed precision where there is no accelerator: bfloat16, which needs no scaling of the loss."""

    @contextmanager
    def optim_context(self, model: nn.Module) -> Iterator[None]:
        with super().optim_context(model), autocast('cpu', dtype=torch.bfloat16):
            yield
