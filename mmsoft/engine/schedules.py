"""Schedules of the lr that fit the length of a run."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop

from .parts import kind_of

SHARE = 10  # of a run, one part in so many is warm-up if that of the config is longer than the run
SHORTEST = 2  # MMEngine's LinearLR never comes to its end in fewer
NEAR = 0.99  # of its lr


def fit_warmup(schedule: Sequence[Mapping[str, Any]], loop: BaseLoop) -> list[dict[str, Any]]:
    """The schedule, its linear warm-up made shorter if it would last as long as the run; what follows comes sooner."""
    fitting = [dict(part) for part in schedule]
    for number, part in enumerate(schedule):
        unit = 'epochs' if part.get('by_epoch', True) else 'iterations'
        length, end = loop.max_epochs if unit == 'epochs' else loop.max_iters, part.get('end', math.inf)
        if kind_of(part) != 'LinearLR' or part.get('begin', 0) or end < length or part.get('end_factor', 1) < 1:
            continue
        new = max(SHORTEST, length // SHARE)
        new = new if new <= length else 0
        print_log(
            f'the warm-up of {end} {unit} is as long as the run of {length}: it takes {new} instead; '
            f'param_scheduler.{number}.end says otherwise',
            logger='current',
            level=logging.WARNING,
        )
        for follower in fitting:
            if follower.get('begin') == end and follower.get('by_epoch', True) == part.get('by_epoch', True):
                follower['begin'] = new
        fitting[number]['end'] = new
    return [part for part in fitting if part.get('end') != 0]


def highest_lr(build: Callable[[OptimWrapper], list], lr: float, loop: BaseLoop) -> float:
    """The highest lr of a run that starts from ``lr``: schedulers that ``build`` gives for a stand-in are gone through.

    They stop where they come near ``lr``, mostly soon after the warm-up.
    """
    stand_in = OptimWrapper(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr, momentum=0.9))
    schedulers, epoch_length = build(stand_in), loop.max_iters // loop.max_epochs
    if any(getattr(scheduler, 'need_val_args', False) for scheduler in schedulers):
        return lr  # depends on what validation gives
    highest = 0.0
    for iteration in range(1, loop.max_iters + 1):
        highest = max(highest, stand_in.get_lr()['lr'][0])
        if highest >= NEAR * lr:
            break
        stand_in.optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or iteration % epoch_length == 0:
                scheduler.step()
    return highest


def fitted(schedule: Any, build: Callable[[Any, OptimWrapper], list], wrapper: Any, loop: BaseLoop) -> Any:
    """The schedule as ``fit_warmup`` gives it, and a warning if the lr stays low all the same.

    Schedules that are built already, and those of several optimizers, are taken as they are.
    """
    parts = [schedule] if isinstance(schedule, Mapping) and 'type' in schedule else schedule
    if isinstance(wrapper, OptimWrapperDict) or not _are_configs(parts):
        return schedule
    parts, lr = fit_warmup(parts, loop), max(wrapper.get_lr()['lr'])
    highest = highest_lr(lambda stand_in: build(parts, stand_in), lr, loop)
    if highest < NEAR * lr:
        print_log(
            f'the lr stays at or below {highest:.3g} for the whole run, {highest / lr:.1%} of the {lr:.3g} of the '
            'config: its param_scheduler is made for a longer run',
            logger='current',
            level=logging.WARNING,
        )
    return parts


def _are_configs(parts: Any) -> bool:
    return isinstance(parts, Sequence) and all(isinstance(part, Mapping) for part in parts)
