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
# A run on data of one's own, whose length a config for another data set cannot tell.
LEAST_ITERATIONS = 1000  # in which a model learns a few pictures, from a random start as well
MOST_EPOCHS = 150  # of runs that count iterations: the 160,000 for ADE20K are 127
LEAST_BETWEEN = 100  # iterations from one validation, and one checkpoint, to the next
KEPT = 3  # checkpoints, unless the config says otherwise
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
        _end_warmup(fitting, number, new)
    return [part for part in fitting if part.get('begin', 0) < part.get('end', math.inf)]


def _end_warmup(parts: Sequence[dict[str, Any]], number: int, new: int) -> None:
    """Sooner, and so begins what follows it."""
    warmup = parts[number]
    for part in parts:
        if part.get('begin') == warmup['end'] and part.get('by_epoch', True) == warmup.get('by_epoch', True):
            part['begin'] = new
    warmup['end'] = new


def fit_length(cfg: Config, epoch_length: int) -> None:
    """A run on data of one's own: as many epochs as the config's, within LEAST_ITERATIONS and MOST_EPOCHS."""
    loop = cfg.train_cfg
    counts_iterations = 'max_iters' in loop
    written = loop.max_iters if counts_iterations else loop.max_epochs * epoch_length
    most = MOST_EPOCHS * epoch_length if counts_iterations else written
    wanted = max(LEAST_ITERATIONS, min(written, most))
    if wanted == written:
        return
    between = math.ceil(LEAST_BETWEEN / epoch_length)
    epochs = between * math.ceil(wanted / epoch_length / between)  # the last one is validated
    set_length(cfg, epochs, lambda: epoch_length)
    for node, name in _intervals(cfg):
        step = between * (epoch_length if counts_iterations else 1)
        node[name] = step * max(1, round(node[name] / step))
    print_log(
        f'this run takes {epochs} epochs of {epoch_length} iterations, which fits the pictures of --data; the '
        f'{written} iterations of the config are for another data set; --epochs says otherwise',
        logger='current',
    )


def space_out(cfg: Config, epoch_length: int) -> None:
    """Of short epochs, several pass from one validation and one checkpoint to the next; few checkpoints are kept.

    A warm-up takes a tenth of the run at most.
    """
    loop, between = cfg.train_cfg, math.ceil(LEAST_BETWEEN / epoch_length)
    unit = epoch_length if 'max_iters' in loop else 1  # an epoch, in what the loop counts
    epochs = (loop.max_iters if 'max_iters' in loop else loop.max_epochs) // unit
    for node, name in _intervals(cfg):
        if 0 < node[name] < between * unit:
            node[name] = unit * next((n for n in range(between, epochs) if epochs % n == 0), max(1, epochs))
    cfg.get('default_hooks', {}).get('checkpoint', {}).setdefault('max_keep_ckpts', KEPT)
    parts = cfg.get('param_scheduler') or []
    parts = [parts] if isinstance(parts, Mapping) else parts
    for number, part in enumerate(parts):
        longest = epochs * (1 if part.get('by_epoch', True) else epoch_length) // SHARE
        if _is_warmup(part) and part.get('end', math.inf) > longest >= SHORTEST:
            _end_warmup(parts, number, longest)


def _intervals(cfg: Config) -> list[tuple[dict[str, Any], str]]:
    """Where the config has those of validations and of checkpoints, in what the loop counts."""
    places = (cfg.train_cfg, 'val_interval'), (cfg.get('default_hooks', {}).get('checkpoint', {}), 'interval')
    return [(node, name) for node, name in places if name in node]


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
    for node, name in _intervals(cfg):
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
