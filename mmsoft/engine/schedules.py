"""Schedules of the lr that fit the length of a run."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import BaseLoop

from .parts import kind_of

SHARE = 10  # of a run, one part in so many is warm-up if that of the config is longer than the run
SHORTEST = 2  # MMEngine's LinearLR never comes to its end in fewer
NEAR = 0.99  # of its lr


def fit_warmup(schedule: Sequence[Mapping[str, Any]], loop: BaseLoop) -> list[dict[str, Any]]:
    """The schedule, its warm-up made shorter if it would last as long as the run; what follows comes sooner.

    Parts of no length, as rounding makes them of short runs, are left out.
    """
    fitting = [dict(part) for part in schedule]
    for number, part in enumerate(schedule):
        unit = 'epochs' if part.get('by_epoch', True) else 'iterations'
        length, end = loop.max_epochs if unit == 'epochs' else loop.max_iters, part.get('end', math.inf)
        if not _is_warmup(part) or end < length:
            continue
        new = max(1 if part.get('convert_to_iter_based') else SHORTEST, length // SHARE)
        new = new if new < length else 0
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
    return [part for part in fitting if part.get('begin', 0) < part.get('end', math.inf)]


def set_length(cfg: Config, epochs: int, epoch_length: Callable[[], int]) -> None:
    """A run of so many epochs: the schedule is stretched, except for its warm-up, and intervals do not outlast the run.

    ``epoch_length`` tells the iterations of an epoch, for runs that count iterations.
    """
    loop = cfg.train_cfg
    unit, new = ('max_iters', epochs * epoch_length()) if 'max_iters' in loop else ('max_epochs', epochs)
    factor, loop[unit] = new / loop[unit], new
    schedule = cfg.get('param_scheduler') or []
    parts = [schedule] if isinstance(schedule, Mapping) else schedule
    for part in parts:
        same_unit = [other for other in parts if other.get('by_epoch', True) == part.get('by_epoch', True)]
        _stretch(part, factor, max((other.get('end', 0) for other in same_unit if _is_warmup(other)), default=0))
    for node, name in ((loop, 'val_interval'), (cfg.get('default_hooks', {}).get('checkpoint', {}), 'interval')):
        if name in node:
            node[name] = min(node[name], max(1, round(node[name] * factor)))
    for hook in cfg.get('custom_hooks') or ():
        if 'switch_epoch' in hook:
            hook.switch_epoch = round(hook.switch_epoch * factor)
        if kind_of(hook) == 'CosineSchedule':
            hook.warmup_epochs = min(hook.warmup_epochs, new / SHARE)


def _is_warmup(part: Mapping[str, Any]) -> bool:
    rises = kind_of(part) in ('LinearLR', 'QuadraticWarmupLR') and part.get('end_factor', 1) >= 1
    return rises and not part.get('begin', 0)


def _stretch(part: dict[str, Any], factor: float, warmup: int) -> None:
    """Places after the warm-up, and lengths, by this factor."""
    if 'end' in part and part.get('T_max') in (part['end'], part['end'] - part.get('begin', 0)):
        del part['T_max']  # MMEngine takes the latter then
    for key in {'begin', 'end', 'milestones'}.intersection(part):
        part[key] = _each(part[key], lambda place: round(place * factor) if warmup < place < math.inf else place)
    for key in {'T_max', 'step_size', 'periods', 'restarts', 'total_steps'}.intersection(part):
        part[key] = _each(part[key], lambda length: max(1, round(length * factor)))


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    return [change(entry) for entry in value] if isinstance(value, (list, tuple)) else change(value)


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
