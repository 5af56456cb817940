"""What a run says of itself: at its start how long it will take, at its end what to type next."""

import atexit
import math
import shlex
import sys
import time
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.runner import EpochBasedTrainLoop, Runner

from mmsoft.registry import HOOKS
from mmsoft.weights.sources import latest_checkpoint

FIRST, TIMED = 2, 4  # iterations that are slower than others, and those whose mean is taken


@HOOKS.register_module()
class TellLength(Hook):
    """Logs how long the run will take, after some iterations, and anew once a validation has been timed."""

    priority = 'VERY_LOW'

    def __init__(self) -> None:
        self.count, self.started, self.per_iter, self.val_started, self.told = 0, 0.0, 0.0, 0.0, False

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.count += 1
        if self.count == FIRST:
            self.started = time.monotonic()
        if self.count == FIRST + TIMED:
            self.per_iter = (time.monotonic() - self.started) / TIMED
            left = runner.max_iters - runner.iter - 1
            if left:
                runner.logger.info(
                    f'this run takes about {in_words(left * self.per_iter)} from here, without validation: '
                    f'{left} iterations of {self.per_iter:.2g} s'
                )

    def before_val(self, runner: Runner) -> None:
        self.val_started = time.monotonic()

    def after_val(self, runner: Runner) -> None:
        if self.told or not self.per_iter:
            return
        self.told, each = True, time.monotonic() - self.val_started
        number, left = _validations_left(runner), runner.max_iters - runner.iter
        if number:
            runner.logger.info(
                f'with {number} more validations of {each:.2g} s, about '
                f'{in_words(left * self.per_iter + number * each)} are left'
            )


@HOOKS.register_module()
class ShowProgress(Hook):
    """On a terminal, a bar with the iterations and the time that are left."""

    priority = 'LOWEST'

    def __init__(self, title: str) -> None:
        self.title = title

    def before_train(self, runner: Runner) -> None:
        from rich.console import Console
        from rich.progress import MofNCompleteColumn, Progress, TimeRemainingColumn

        hidden = not (is_main_process() and sys.stderr.isatty())
        columns = *Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=Console(stderr=True), disable=hidden, redirect_stdout=False)
        self.task = self.bar.add_task(self.title, total=runner.max_iters, completed=runner.iter)
        self.bar.start()
        atexit.register(self.bar.stop)  # a terminal must not lose its cursor to an error

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self.bar.update(self.task, completed=runner.iter + 1)

    def after_train(self, runner: Runner) -> None:
        self.bar.stop()


def _validations_left(runner: Runner) -> int:
    loop = runner.train_loop
    done, end = (
        (runner.epoch, runner.max_epochs) if isinstance(loop, EpochBasedTrainLoop) else (runner.iter, runner.max_iters)
    )
    return math.ceil((end - done) / loop.val_interval)


def in_words(seconds: float) -> str:
    """'2 days 3 h', '1 h 20 min', '5 min', '40 s'."""
    minutes = round(seconds / 60)
    if seconds < 120:
        return f'{max(1, round(seconds))} s'
    if minutes < 60:
        return f'{minutes} min'
    if minutes < 48 * 60:
        return f'{minutes // 60} h {minutes % 60} min'
    hours = round(minutes / 60)
    return f'{hours // 24} days {hours % 24} h'


def next_steps(runner: Runner, program: str) -> str:
    """Commands that go on from a finished training; ``program`` is how it was started."""
    folder = Path(runner.work_dir)
    checkpoint = latest_checkpoint(folder)
    if checkpoint is None:
        return f'done; no checkpoint was saved in {str(folder)!r}'
    best = runner.message_hub.get_info('best_ckpt') if 'best_ckpt' in runner.message_hub.runtime_info else None
    weights = best if best and Path(best).is_file() else checkpoint
    config = folder / Path(runner.cfg.filename or 'config.py').with_suffix('.py').name
    of_script = f'python {Path(program).parent.as_posix()}/{{}}.py' if program.endswith('.py') else 'mmsoft {}'
    config, weights = shlex.quote(str(config)), shlex.quote(str(weights))
    return '\n'.join(
        [
            f'done: {weights}. What to type next:',
            f'  {of_script.format("test")} {config} {weights}',
            f'  {of_script.format("predict")} {weights} PICTURES --out-dir found',
        ]
    )
