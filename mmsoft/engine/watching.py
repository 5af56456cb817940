"""What several processes know of each other: equal configs, who waits for whom, and who ended and why."""

import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, broadcast_object_list, get_dist_info
from mmengine.hooks import Hook
from mmengine.logging import print_log
from mmengine.runner import Runner

from mmsoft.registry import HOOKS

from .conditions import differences, listed
from .preemption import Preempted, ignore_signals

BEAT = 1.0  # seconds between signs of life
PATIENCE = float(os.environ.get('MMSOFT_PATIENCE', 60))  # seconds of waiting before a word is said, then twice as many
LINGER = 3 * BEAT


def check_equal(values: Mapping[str, Any]) -> None:
    """Raise, in all processes, unless all have the same values."""
    ranks = all_gather_object(dict(values))
    for rank, other in enumerate(ranks):
        found = differences(ranks[0], other)
        if found:
            raise ValueError(
                f'the processes were started for different runs: {listed(found, "in rank 0", f"in rank {rank}")}; '
                'start all with the same config, options and files'
            )


def end_together(problem: Exception | None) -> None:
    """What the first process has found ends all: it raises, the others leave without a word."""
    if problem is not None:
        ignore_signals()  # a launcher ends it as soon as another has left
    stop = [problem is not None]
    broadcast_object_list(stop)
    if problem is not None:
        raise problem
    if stop[0]:
        raise SystemExit(1)


class Others:
    """The other processes, through the store that they met at; one thread beats and listens.

    ``place`` says where this process is: numbers that grow alike in all processes, then words.
    """

    def __init__(self) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.rank, self.world_size = get_dist_info()
        self.place, self.moved, self.patience = (0, 0, 0, 'is starting'), time.monotonic(), PATIENCE
        self.end = None  # of the first that ended: (rank, whether to try again, sentence)
        attempt = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')
        address, port = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
        store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=30))
        self.store = PrefixStore(f'mmsoft{attempt}', store)
        self.heard = {}  # rank -> (its last beat, when it came)
        self.listening = True
        threading.Thread(target=self._listen, daemon=True).start()

    def at(self, *place: Any) -> None:
        self.place, self.moved, self.patience = place, time.monotonic(), PATIENCE

    def tell_end(self, again: bool, sentence: str) -> None:
        """For the others: this process ends. The first one keeps the store, and gives them time to read."""
        if self.end is None and not self.store.check(['end']):
            self.store.set('end', json.dumps([self.rank, again, sentence]))
            time.sleep(LINGER if self.rank == 0 else 0)

    def ask_end(self, wait: bool) -> tuple[int, bool, str] | None:
        """Who ended before this process, whether to try again, and why.

        With ``wait``, one that was killed is found by its silence.
        """
        self._read_end()
        if self.end is None and wait:
            self._hear()
            time.sleep(LINGER)
            self._read_end()
            self._hear()
            silent = [rank for rank, (_, at) in self.heard.items() if time.monotonic() - at > LINGER - BEAT / 2]
            if self.end is None and silent:
                self.end = silent[0], False, 'without a word; it may have been killed, as for want of memory'
        return self.end if self.end and self.end[0] != self.rank else None

    def _listen(self) -> None:
        count = 0
        try:
            while self.listening and self.end is None:
                count += 1
                self.store.set(str(self.rank), json.dumps([count, *self.place]))
                self._read_end()
                if time.monotonic() - self.moved > self.patience:
                    self._say_who_is_waited_for()
                time.sleep(BEAT)
        except RuntimeError:
            self._read_end()
        if self.listening and self.end[0] != self.rank:
            print_log(f'rank {self.end[0]} ended: {self.end[2]}', logger='current', level=logging.ERROR)

    def _read_end(self) -> None:
        try:
            if self.end is None and self.store.check(['end']):
                self.end = tuple(json.loads(self.store.get('end')))
        except RuntimeError:  # the store is gone, and the first process with it
            self.end = 0, False, 'without a word'

    def _hear(self) -> dict[int, tuple[tuple, str]]:
        """Places of the other processes, in numbers and in words; when each was heard of is taken down."""
        places = {}
        for rank in range(self.world_size):
            if rank != self.rank and self.store.check([str(rank)]):
                count, *numbers, words = json.loads(self.store.get(str(rank)))
                if self.heard.get(rank, (0, 0))[0] != count:
                    self.heard[rank] = count, time.monotonic()
                places[rank] = tuple(numbers), words
        return places

    def _say_who_is_waited_for(self) -> None:
        own, places = tuple(self.place[:-1]), self._hear()
        waiting = [self.rank, *(rank for rank, (numbers, _) in places.items() if numbers >= own)]
        behind = [f'rank {rank}, which {words}' for rank, (numbers, words) in places.items() if numbers < own]
        seconds, self.patience = time.monotonic() - self.moved, 2 * self.patience
        if self.rank != min(waiting):
            return
        if behind:
            text = f'rank {self.rank} has waited {seconds:.0f} s for {"; ".join(behind)}'
        else:
            text = f'no process has gone on for {seconds:.0f} s: rank {self.rank} {self.place[-1]}'
        print_log(text, logger='current', level=logging.WARNING)


_others = None  # of this process, where there are several


def stop_listening() -> None:
    """The processes are about to end, in order."""
    if _others is not None:
        _others.listening = False


@cache
def _fork_calmly() -> None:
    if sys.platform == 'linux':
        os.register_at_fork(before=wait_for_calm)


def wait_for_calm(longest: float = 0.5) -> None:
    """Until no other thread of this process runs, or ``longest`` seconds.

    Up to Python 3.12 a forked child hangs for ever if a thread held the interpreter's lock of thread states then.
    Gloo's threads do for a moment after each collective, and data workers are forked right after one.
    """
    deadline = time.monotonic() + longest
    while any(map(_runs, Path('/proc/self/task').iterdir())) and time.monotonic() < deadline:
        time.sleep(0.001)


def _runs(thread: Path) -> bool:
    if int(thread.name) == threading.get_native_id():
        return False
    try:
        return Path(thread, 'stat').read_text().rpartition(')')[2].split()[0] == 'R'
    except OSError:  # it has ended
        return False


@contextmanager
def in_company() -> Iterator[None]:
    """Tell the other processes how this one ends; where another ended first, say so instead of what came of it."""
    global _others
    if get_dist_info()[1] == 1:
        yield
        return
    _others = Others()
    _fork_calmly()
    try:
        yield
    except (Exception, Preempted) as error:
        _explain(_others, error)
        raise
    finally:
        stop_listening()


def _explain(others: Others, error: BaseException) -> None:
    left = isinstance(error, Preempted)
    if left and not others.listening:
        return  # all leave together
    if not left:
        ignore_signals()
    lost = isinstance(error, RuntimeError) and re.search('connection|peer|gloo|nccl|timed? ?out', str(error), re.I)
    found = others.ask_end(wait=bool(lost))
    if found is None:
        others.tell_end(left, error.why if left else f'{error}'.strip().split('\n')[0] or type(error).__name__)
        return
    rank, again, sentence = found
    if again:
        raise Preempted(f'rank {rank} left: {sentence}') from error
    raise RuntimeError(f'rank {rank} ended: {sentence}') from error


@HOOKS.register_module()
class TellPlace(Hook):
    """Lets the other processes know how far this one is."""

    priority = 'VERY_HIGH'

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None) -> None:
        self._at(runner.iter, 1, 0, f'computes iteration {runner.iter + 1}')

    def after_train_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self._at(runner.iter, 2, 0, f'saves after iteration {runner.iter + 1}, or reads the next batch')

    def after_val_iter(self, runner: Runner, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        self._at(runner.iter, 0, batch_idx, f'validates, after batch {batch_idx + 1}')

    def _at(self, *place: Any) -> None:
        if _others is not None:
            _others.at(*place)
