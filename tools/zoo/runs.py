"""Each method in a process of its own, so that a crash or a hang loses only itself."""

import importlib
import multiprocessing
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import torch

from zoo import configs, method
from zoo.configs import Method

LIBRARIES = ('mmdet', 'mmseg')


def run(
    methods: Iterable[Method], seconds: float, threads: int, trial: ModuleType = method
) -> Iterator[tuple[Method, dict[str, Any]]]:
    """Every method with what ``trial`` found; where processes fork, mmdet and mmseg are imported once for all."""
    for library in LIBRARIES:
        importlib.import_module(f'{library}.utils').register_all_modules(init_default_scope=False)
    for chosen in methods:
        yield chosen, run_apart(chosen, seconds, threads, trial)


def run_apart(chosen: Method, seconds: float, threads: int, trial: ModuleType = method) -> dict[str, Any]:
    """What was found, also when the process dies or does not end."""
    context = multiprocessing.get_context('fork' if 'fork' in multiprocessing.get_all_start_methods() else 'spawn')
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(sender, chosen, threads, trial), daemon=True)
    process.start()
    sender.close()
    try:
        row = receiver.recv() if receiver.poll(seconds) else _lost(f'no end after {seconds:g} s', trial.STEPS)
    except EOFError:
        process.join()
        row = _lost(f'the process ended with {process.exitcode}', trial.STEPS)
    process.kill()
    process.join()
    return dict(config=chosen.config) | row


def _lost(reason: str, steps: Sequence[str]) -> dict[str, Any]:
    return dict.fromkeys(steps, False) | dict(errors={steps[0]: reason}, tracebacks={}, operators={})


def _work(sender: Connection, chosen: Method, threads: int, trial: ModuleType) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    torch.set_num_threads(threads)
    sender.send(trial.check(chosen.library, chosen.config))


def choose(libraries: Sequence[str], names: Collection[str] | None) -> list[Method]:
    """The folders and configs of these names, or all; a name that no zoo knows is kept, and will fail."""
    found = [entry for library in libraries for entry in configs.methods(library, names)]
    missing = sorted(set(names or ()) - {entry.name for entry in found})
    return found + [Method(libraries[0], name, f'{name}.py') for name in missing]
