"""Time and peak memory: a process a case, run in turn so that noise meets all alike.

The processes of a group start together and wait; only one of them runs at a time, a round whenever it is asked to.
Peak memory comes from further processes, after the rounds.
"""

import contextlib
import ctypes
import gc
import importlib
import math
import multiprocessing
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mmsoft.engine.complexity import count_call
from mmsoft.memory import of_linux

from .cases import GEMMS, PRECISIONS, WHOLE, Case, Work, build

ROUND_SECONDS = 0.2  # a round repeats what is shorter
M_MMAP_THRESHOLD = -3  # of malloc.h
GRAPH_WARM_UPS = 3  # steps before one is captured, as torch asks for
WARM_UP_SIDE = 128  # libraries load and weights are packed on a small input
NO_MEMORY = 'peak memory was not measured: that needs CUDA, or a Linux that lets /proc/self/clear_refs be written'

# Each case's process is forked from one that has libraries loaded and did nothing else, where the system can do that.
_FORKS = 'forkserver' in multiprocessing.get_all_start_methods()
PROCESSES = multiprocessing.get_context('forkserver' if _FORKS else 'spawn')
if _FORKS:
    PROCESSES.set_forkserver_preload(['torch', 'torchvision', 'timm', 'mmengine.runner'])


class Options(NamedTuple):
    """How to measure: times in so many rounds, peak memory as the median of so many processes.

    ``imports`` are modules that register attentions or families, for these processes as well.
    """

    rounds: int = 9
    threads: int = 2
    memory: bool = True
    memory_samples: int = 1
    imports: tuple[str, ...] = ()


class Group(NamedTuple):
    """Cases that are compared, run in turn; ``rounds`` bounds those of the options."""

    name: str
    cases: tuple[Case, ...]
    rounds: int | None = None


@dataclass
class Record:
    """What was found of one case: seconds of every round, MiB of every process."""

    group: str
    case: Case
    seconds: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    parameters: int | None = None
    macs: int | None = None
    failure: str | None = None


class Worker:
    """A process that builds a case and then does what it is asked to."""

    def __init__(self, record: Record, options: Options) -> None:
        self.record = record
        self.pipe, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(target=_serve, args=(theirs, record.case, options))
        self.process.start()
        theirs.close()

    def ask(self, request: str) -> Any:
        """The answer; None once the case has failed, which the record then tells."""
        if self.record.failure:
            return None
        try:
            self.pipe.send(request)
            answer, self.record.failure = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            cause = signal.Signals(-code).name if code < 0 else f'exit status {code}'
            hint = ' (out of memory?)' if cause == 'SIGKILL' else ''
            self.record.failure, answer = f'its process ended with {cause}{hint}', None
        return answer

    def close(self) -> None:
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def measure_group(group: Group, options: Options, records: list[Record], say: Callable[[str], None]) -> None:
    """Append a record a case and fill them in; they hold what was found when an exception ends this."""
    mine = [Record(group.name, case) for case in group.cases]
    records += mine
    workers = []
    try:
        for record in mine:
            workers.append(Worker(record, options))
        for worker in workers:
            worker.record.parameters = worker.ask('build')
        for worker in workers:
            worker.ask('warm_up')
            worker.record.macs = worker.ask('count')
        rounds = min(options.rounds, group.rounds or options.rounds)
        for turn in range(rounds):
            for worker in workers:
                if (seconds := worker.ask('round')) is not None:
                    worker.record.seconds.append(seconds)
            say(f'{group.name}: round {turn + 1} of {rounds}')
    except KeyboardInterrupt:
        for record in mine:
            record.failure = record.failure or (None if record.seconds else 'interrupted')
        raise
    finally:
        for worker in workers:
            worker.close()
    for record in mine:
        if options.memory and record.case.model not in GEMMS:
            _weigh(record, options)


def _weigh(record: Record, options: Options) -> None:
    for _ in range(options.memory_samples):
        if record.failure:
            return
        worker = Worker(Record(record.group, record.case), options)
        try:
            worker.ask('build')
            if (peak := worker.ask('weigh')) is not None:
                record.peak_mib.append(peak)
            elif worker.record.failure:
                record.failure = f'weighing: {worker.record.failure}'
        finally:
            worker.close()


def _serve(pipe: Connection, case: Case, options: Options) -> None:
    """Answer requests, each by (answer, failure), until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent's to handle
    with contextlib.suppress(OSError):
        Path('/proc/self/oom_score_adj').write_text('1000')  # where memory ends, this goes first
    warnings.simplefilter('ignore')
    warnings.filterwarnings('error', message='.*autocast.*not supported')  # it would run in fp32
    torch.set_num_threads(options.threads)
    for name in options.imports:
        importlib.import_module(name)
    runs = _Runs(case)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(_answer(runs, pipe.recv()))


def _answer(runs: '_Runs', request: str) -> tuple[Any, str | None]:
    """The result, and in one line what failed."""
    try:
        answer = getattr(runs, request)()
        if runs.case.device == 'cuda':
            torch.cuda.empty_cache()  # the GPU is shared with the processes that wait
        return answer, None
    except Exception as error:
        text = (str(error).strip() or 'no message').splitlines()[0]
        own = isinstance(error, (ValueError, MemoryError))
        return None, text if own else f'{type(error).__name__}: {text}'


class _Runs:
    """The requests: build, then warm_up, count and round, or weigh."""

    def __init__(self, case: Case) -> None:
        self.case, self.repeats = case, 1

    def build(self) -> int:
        """The number of parameters."""
        torch.manual_seed(0)
        work = build(self.case)
        if self.case.compiled:  # of a whole model the backbone
            target = getattr(work.module, 'backbone', work.module)
            target.forward = torch.compile(target.forward)
        self.work = work
        return sum(parameter.numel() for parameter in work.module.parameters())

    def warm_up(self) -> None:
        """The first runs, of which the last sets how often a round repeats."""
        self._start()
        self._capture()
        if self._timed(1) < ROUND_SECONDS:
            self.repeats = math.ceil(ROUND_SECONDS / self._timed(1))

    def weigh(self) -> float | None:
        """MiB that the first run at full size adds at its peak."""
        _unmap_what_is_freed()
        self._start()
        with _peak(self.case.device) as peak:
            self._capture()  # a graph has its memory from then on
            self._timed(1)
        return peak[0] if peak else None

    def _start(self) -> None:
        size = self.case.size
        if not self.case.compiled:  # a second size would be compiled for as well
            size = tuple(min(side, WARM_UP_SIDE) for side in size)
        self._step(self.work.inputs(size))
        self.inputs = self.work.inputs(self.case.size)
        self.run = lambda: self._step(self.inputs)

    def _capture(self) -> None:
        """Let runs replay a CUDA graph of a step, if the case says so; libraries get ready on a stream aside."""
        if not self.case.graph:
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(GRAPH_WARM_UPS):
                self._step(self.inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(self.inputs)
        self.run = graph.replay

    def count(self) -> int | None:
        """Multiply-adds, on the meta device, as fused operators would not be seen; of training three times forward's.

        That is two gradients for each product; what backward computes again to save memory is no work.
        """
        if self.case.family in WHOLE:  # they depend on what is found in the image
            return None
        forward = self.case._replace(with_cp=False, task='forward', precision='fp32')
        try:
            work = build(forward, 'meta')
            inputs = work.inputs(self.case.size)
            return count_call(lambda: _step(forward, work, inputs)) * (3 if self.case.task == 'train' else 1)
        except (NotImplementedError, RuntimeError):  # an operator without shapes: times are worth having all the same
            return None

    def round(self) -> float:
        """Seconds of one run."""
        return self._timed(self.repeats)

    def _step(self, inputs: Any) -> None:
        _step(self.case, self.work, inputs)

    def _timed(self, repeats: int) -> float:
        if self.case.device == 'cuda':
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(repeats):
                self.run()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) / 1000 / repeats
        start = time.perf_counter()
        for _ in range(repeats):
            self.run()
        return (time.perf_counter() - start) / repeats


def _step(case: Case, work: Work, inputs: Any) -> None:
    """A forward pass, or a forward and a backward pass; kernels of a GPU may still be at work."""
    amp = case.precision != 'fp32'
    autocast = torch.autocast(case.device, PRECISIONS[case.precision]) if amp else contextlib.nullcontext()
    if case.task == 'forward':
        with torch.inference_mode(), autocast:
            work.call(inputs)
        return
    with autocast:
        loss = work.call(inputs)
    loss.backward()
    work.module.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _peak(device: str):
    """Collects MiB that are added at the peak; nothing where that cannot be measured."""
    found = []
    gc.collect()
    if device == 'cuda':
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield found
        found.append((torch.cuda.max_memory_allocated() - before) / 2**20)
        return
    try:
        _trim()
        Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark
        before = of_linux('VmRSS')
    except OSError:
        yield found
        return
    yield found
    found.append(of_linux('VmHWM') - before)


def _unmap_what_is_freed() -> None:
    """Let glibc map every block of 1 MiB and more on its own: what is resident is then what tensors hold.

    Otherwise freed blocks stay with the process in the order they happen to lie, which differs from model to model
    and has nothing to do with it. On a GPU torch.cuda.max_memory_allocated leaves that out, too.
    """
    if sys.platform == 'linux':
        with contextlib.suppress(AttributeError):  # musl has no such call
            ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


def _trim() -> None:
    """Give memory that was freed back to the system, or the peak would be met out of it."""
    if sys.platform == 'linux':
        with contextlib.suppress(AttributeError):  # musl has no such call
            ctypes.CDLL(None).malloc_trim(0)
