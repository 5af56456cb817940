"""Checkpoints besides those of the config: every so often, when a signal comes; and validation that a kill cut off."""

import re
import time
from pathlib import Path
from typing import Any

import torch
from mmengine.dist import all_reduce, barrier, is_main_process
from mmengine.hooks import Hook, SyncBuffersHook
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner

from mmsoft.checkpoints import EMA_KEY
from mmsoft.registry import HOOKS

from .classification import AverageWeights
from .preemption import Preempted, request
from .resuming import EMA_HOOK, TIMED, average_of_mmengine, between_updates, collect
from .watching import stop_listening

UNITS = dict(s=1, min=60, h=3600, it=None)
VALIDATED = 'mmsoft_validated'  # in the message hub: the iteration of the last validation
LOOK = 10  # iterations on GPUs between questions whether to leave: each waits for the GPU


def parse_interval(text: str) -> tuple[float, bool]:
    """'15min' -> (900.0, False) seconds; '500it' -> (500.0, True) iterations."""
    found = re.fullmatch(rf'(\d+(?:\.\d+)?)({"|".join(UNITS)})', text.strip())
    if not found or float(found[1]) <= 0:
        raise ValueError(
            f'--save-every takes a time such as 90s, 15min or 2h, or iterations such as 500it; got {text!r}'
        )
    return float(found[1]) * (UNITS[found[2]] or 1), UNITS[found[2]] is None


def collect_for(runner: Runner) -> dict[str, Any]:
    """What a checkpoint needs of all processes."""
    ours = next((hook.average.module for hook in runner.hooks if isinstance(hook, AverageWeights)), None)
    averages = {EMA_KEY: ours, EMA_HOOK: average_of_mmengine(runner)}
    return collect(runner, {key: average for key, average in averages.items() if average is not None})


@HOOKS.register_module()
class SaveAnywhere(Hook):
    """Saves ``iter_<n>.pth`` every so often, if asked, and when a signal comes; the newest of these stays.

    ``every`` counts from the last checkpoint of any kind, by the clock of the first process. In several processes all
    leave at one iteration. While gradients are added up, both wait for the update of the weights.
    """

    priority = 'LOWEST'  # after the checkpoint hook

    def __init__(self, every: str | None = None) -> None:
        self.every, self.by_iter = parse_interval(every) if every else (None, False)
        self.leave = self.due = False

    def before_run(self, runner: Runner) -> None:
        cheap = runner.world_size == 1 or torch.distributed.get_backend() == 'gloo'
        self.look, self.started = 1 if cheap else LOOK, time.monotonic()

    def before_train_epoch(self, runner: Runner) -> None:
        request.finishing = True

    def after_val(self, runner: Runner) -> None:
        request.finishing = True

    def after_train(self, runner: Runner) -> None:
        request.finishing = False

    def before_val(self, runner: Runner) -> None:
        """From here a signal ends the validation at once: it is made up when the run goes on."""
        self._agree(runner)
        if self.leave:
            self._leave(runner, runner.iter)
        request.finishing = False
        if request.name:  # it came just now
            raise Preempted(f'{request.name} has come')

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        step = runner.iter + 1
        if self.by_iter:
            self.due = step - runner.saved_iter >= self.every
        if step % self.look == 0 or step == runner.max_iters:
            self._agree(runner)
        if between_updates(runner):
            return
        if self.leave:
            self._leave(runner, step)
        if self.due:
            self._save(runner, step)

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        checkpoint.update(runner.collected)
        if 'optimizer' in checkpoint:
            self.started = time.monotonic()

    def _agree(self, runner: Runner) -> None:
        """Leave if any process was asked to; save if the clock of the first one says so."""
        late = self.every is not None and not self.by_iter and time.monotonic() - self.started >= self.every
        flags = torch.tensor([bool(request.name), late and is_main_process()], dtype=torch.int32)
        if runner.world_size > 1:
            all_reduce(flags, op='max')
        leave, due = flags.tolist()
        self.leave, self.due = self.leave or bool(leave), self.due or bool(due)

    def _leave(self, runner: Runner, step: int) -> None:
        if not between_updates(runner):
            self._save(runner, step)
        stop_listening()
        if runner.world_size > 1:
            barrier()  # a process that ends first would have the others killed while one of them writes
        raise Preempted(f'the state after iteration {runner.saved_iter} is saved')

    def _save(self, runner: Runner, step: int) -> None:
        self.due = False
        if step == runner.saved_iter:
            return
        earlier = runner.message_hub.runtime_info.get(TIMED, [])
        runner.message_hub.update_info(TIMED, [*earlier, step])  # a kill before the earlier ones are gone forgets none
        runner.logger.info(f'Saving checkpoint at {step} iterations')
        runner.collected = collect_for(runner)
        runner.save_checkpoint(
            runner.work_dir,
            f'iter_{step}.pth',
            save_param_scheduler=runner.param_schedulers is not None,
            meta=dict(epoch=runner.epoch, iter=step),
        )
        runner.collected = {}
        runner.message_hub.update_info(TIMED, [step])
        for old in earlier if is_main_process() else ():
            Path(runner.work_dir, f'iter_{old}.pth').unlink(missing_ok=True)


@HOOKS.register_module()
class MakeUpValidation(Hook):
    """MMEngine saves, then validates: after a kill between, the run that goes on validates first."""

    priority = 'LOWEST'  # all other hooks are ready

    def before_train(self, runner: Runner) -> None:
        if runner._resume and _validation_due(runner):
            runner.logger.info(f'The validation at iteration {runner.iter} is made up')
            for hook in runner.hooks:
                if isinstance(hook, SyncBuffersHook):  # it had averaged the buffers that were saved after an epoch
                    hook.called_in_train = isinstance(runner.train_loop, EpochBasedTrainLoop)
            runner.val_loop.run()

    def before_val_epoch(self, runner: Runner) -> None:
        runner.message_hub.update_info(VALIDATED, runner.iter)


def _validation_due(runner: Runner) -> bool:
    """Whether the loop would validate at this place, and no checkpoint says that it did."""
    loop = runner.train_loop
    if runner.val_loop is None or not loop.iter or runner.message_hub.runtime_info.get(VALIDATED) == loop.iter:
        return False
    if isinstance(loop, EpochBasedTrainLoop):
        step, last, within = loop.epoch, loop.max_epochs, loop.iter != getattr(loop, 'first', loop.iter)
    elif isinstance(loop, IterBasedTrainLoop):
        step, last, within = loop.iter, loop.max_iters, False
    else:
        return False
    loop._decide_current_val_interval()
    return not within and step >= loop.val_begin and (step % loop.val_interval == 0 or step == last)
