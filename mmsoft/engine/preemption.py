"""Signals that ask a training to leave: it finishes the iteration, saves and goes; later it is resumed."""

import atexit
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from mmap import mmap
from types import FrameType
from typing import Any

EXIT_CODE = 75  # sysexits.h: temporary failure, try again
# Slurm sends the second before a time limit, if asked; Windows has the last alone.
SIGNALS = [getattr(signal, name) for name in ('SIGTERM', 'SIGUSR1', 'SIGINT') if hasattr(signal, name)]
SAME = 1.0  # seconds: torchrun passes on a Ctrl-C that the terminal has sent to all
GRACE = 60  # seconds that a data worker lives on


class Preempted(SystemExit):
    """Leave with EXIT_CODE."""

    def __init__(self, why: str) -> None:
        super().__init__(EXIT_CODE)
        self.why = why

    def __str__(self) -> str:
        return self.why


class Request:
    """Whether a signal has come; outside of iterations it ends what is being done at once."""

    def __init__(self) -> None:
        self.name, self.at, self.finishing, self.owner = '', 0.0, False, 0
        self.ending = mmap(-1, 1)  # shared with forked workers: whether the trainer is about to go

    def listen(self) -> None:
        self.owner = os.getpid()
        for number in SIGNALS:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self.owner:
            return  # a forked data worker: its parent decides
        now = time.monotonic()
        if number == signal.SIGINT and self.name and now - self.at > SAME:
            raise KeyboardInterrupt
        if not self.name:
            self.name, self.at = signal.Signals(number).name, now
            if not self.finishing:
                raise Preempted(f'{self.name} has come')
            os.write(2, f'{self.name}: leaving after this iteration\n'.encode())  # print may be at work below


request = Request()


def ignore_signals() -> None:
    """For a process that is about to say why it ends: a launcher's signal must not cut it off. Ctrl-C still does."""
    for number in SIGNALS:
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)


def protect(loader: Any) -> None:
    """Signals that all processes of a job get, its data workers too, are for the trainer alone."""
    if request.owner:
        atexit.unregister(_end)
        atexit.register(_end)  # after multiprocessing's own, and so before it
        loader.worker_init_fn = partial(_outlive, loader.worker_init_fn)


def _end() -> None:
    request.ending[0] = 1


def _outlive(then: Callable[[int], None] | None, worker: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, 'SIGUSR1'):
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if os.getppid() == request.owner:  # forked
        signal.signal(signal.SIGTERM, _wait_for_parent)
    if then is not None:
        then(worker)


def _wait_for_parent(number: int, frame: FrameType | None) -> None:
    """The trainer ends its workers with SIGTERM, too: when it is about to go, and those that hang."""
    if request.ending[0]:
        os._exit(0)
    signal.alarm(GRACE)
