"""What the numbers of a run depend on, kept in its checkpoints: a run that goes on under others says so."""

from collections.abc import Iterator, Mapping
from typing import Any

from mmengine.config import Config
from mmengine.optim import OptimWrapper

from mmsoft.checkpoints import CheckpointError

from .parts import kind_of, walk_dicts

PARTS = ('model', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'train_cfg', 'auto_scale_lr', 'sync_bn')
FORGETFUL = {'CachedMosaic', 'CachedMixUp', 'EarlyStoppingHook'}  # what they remember is in no checkpoint
# Where data and weights lie, how fast they are read, and what only looks on.
INNOCENT = {
    *('data_root', 'data_prefix', 'ann_file', 'labels', 'record', 'backend_args', 'file_client_args'),
    *('num_workers', 'persistent_workers', 'pin_memory', 'prefetch_factor', 'serialize_data', 'lazy_init', '_scope_'),
    *('init_cfg', 'pretrained', 'test_cfg', 'val_begin', 'val_interval', 'dynamic_intervals'),
}
LOOK_ON = {
    *('SeedEachIteration', 'AverageLosses', 'StopAtInvalidLoss', 'ReportFaults', 'LogThroughput', 'DrawPredictions'),
    *(
        'SaveAnywhere',
        'MakeUpValidation',
        'TellPlace',
        'NumClassCheckHook',
        'MemoryProfilerHook',
        'DetVisualizationHook',
    ),
}
NOT_SETTINGS = ('params', 'initial_lr', 'lr_scale')  # of a group of parameters
SHOWN = 8  # differences in a message
SCALED = {'processes', 'epoch_length', 'train_dataloader.batch_size'}  # what an lr that follows the batch allows


def conditions(cfg: Config) -> dict[str, Any]:
    """Values of a config by their dotted names: numbers, words and lists of them."""
    hooks = [hook for hook in cfg.get('custom_hooks') or () if kind_of(hook) not in LOOK_ON]
    parts = {name: cfg[name] for name in PARTS if cfg.get(name) is not None}
    parts.update(custom_hooks=hooks)
    return dict(seed=(cfg.get('randomness') or {}).get('seed'), **dict(_values(parts)))


def forgetful(cfg: Config) -> list[str]:
    """Parts of a config after which a resumed run may differ from an uninterrupted one."""
    return sorted(FORGETFUL & {kind_of(part) for part in walk_dicts(cfg._cfg_dict)})


def _values(node: Any, name: str = '') -> Iterator[tuple[str, Any]]:
    plain = (int, float, str, type(None))
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key not in INNOCENT:
                yield from _values(kind_of(value) if key == 'type' else value, f'{name}.{key}' if name else str(key))
    elif isinstance(node, (list, tuple)) and not all(isinstance(value, plain) for value in node):
        for index, value in enumerate(node):
            yield from _values(value, f'{name}.{index}')
    elif isinstance(node, (list, tuple)):
        yield name, list(node)
    elif not isinstance(node, str) or not ('/' in node or '\\' in node):  # a path
        yield name, node if isinstance(node, plain) else kind_of(node)


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Names whose values differ, with both."""
    nothing = 'not given'
    names = dict.fromkeys([*first, *second])
    pairs = {name: (first.get(name, nothing), second.get(name, nothing)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def listed(found: Mapping[str, tuple[Any, Any]], first: str, second: str) -> str:
    shown = [f'{name} is {a!r} {first} and {b!r} {second}' for name, (a, b) in list(found.items())[:SHOWN]]
    return '; '.join(shown) + (f'; and {len(found) - SHOWN} more' if len(found) > SHOWN else '')


def check_optimizer(saved: Mapping[str, Any], wrapper: Any) -> None:
    """Raise unless the state of an optimizer is of this kind and of so many parameters."""
    if not isinstance(wrapper, OptimWrapper):
        return
    groups, fresh = saved.get('param_groups', ()), wrapper.optimizer.param_groups
    sizes = [[len(group['params']) for group in each] for each in (groups, fresh)]
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f'its optimizer has {sum(sizes[0])} tensors in {len(sizes[0])} groups, this one {sum(sizes[1])} in '
            f'{len(sizes[1])}: resume with the paramwise_cfg and the frozen parts of then'
        )
    names = [sorted({name for group in each for name in group if _is_setting(name, group)}) for each in (groups, fresh)]
    if names[0] != names[1]:
        kind = type(wrapper.optimizer).__name__
        raise CheckpointError(
            f'its optimizer is of another kind than {kind}: it has {", ".join(names[0])}, and {kind} '
            f'{", ".join(names[1])}; resume with the optimizer of then, or start from the weights with load_from'
        )


def _is_setting(name: str, group: Mapping[str, Any]) -> bool:
    """Not the flags that versions of torch differ in."""
    return type(group[name]) in (int, float, tuple, list) and name not in NOT_SETTINGS


def check_same(saved: Mapping[str, Any], now: Mapping[str, Any], anyway: bool, by_epoch: bool) -> dict[str, tuple]:
    """Differences between the run that wrote a checkpoint and this one; raise where they are not meant.

    An lr that follows the batch, in epochs, allows for another batch or number of processes.
    """
    if not _is_complete(saved):
        raise CheckpointError('what it says of its run is damaged')
    found = differences({**saved, **saved['config']}, {**now, **now['config']})
    for name in ('done', 'config'):
        found.pop(name, None)
    if not found or anyway or (by_epoch and now['config'].get('auto_scale_lr.enable') and found.keys() <= SCALED):
        return found
    raise CheckpointError(
        f'this run is not the one that wrote it: {listed(found, "there", "here")}. Give the values of that run, or go '
        'on with those given here with --resume-anyway'
    )


def _is_complete(saved: Any) -> bool:
    numbers = ('done', 'processes', 'epoch_length', 'samples')
    return (
        isinstance(saved, Mapping)
        and all(type(saved.get(name)) is int for name in numbers)
        and 0 <= saved['done'] <= saved['epoch_length'] > 0
        and isinstance(saved.get('config'), Mapping)
    )


def as_configured(runner: Any, groups: list[dict[str, Any]]) -> None:
    """The lr and momentum that a run of this config, batch and schedule would have at this place.

    ``groups`` are those of the optimizer as it was built; the schedule is gone through from the beginning.
    """
    if not isinstance(runner.optim_wrapper, OptimWrapper):
        raise CheckpointError('it is of a run with several optimizers, which goes on with the values of then alone')
    for group, fresh in zip(runner.optim_wrapper.param_groups, groups, strict=True):
        group.update(fresh)
    if not runner.cfg.get('param_scheduler'):
        return
    schedulers = runner.param_schedulers = runner.build_param_scheduler(runner.cfg.param_scheduler)
    if not isinstance(schedulers, list) or any(getattr(scheduler, 'need_val_args', False) for scheduler in schedulers):
        raise CheckpointError(
            'its schedule follows the validation, and cannot be gone through for another batch or lr: resume with '
            'those of then'
        )
    ends = {epoch * len(runner.train_dataloader) for epoch in range(1, runner.epoch + 1)}
    for iteration in range(1, runner.iter + 1):
        for scheduler in schedulers:
            if not scheduler.by_epoch or iteration in ends:
                scheduler.step()


def settings_of(wrapper: Any) -> list[dict[str, Any]]:
    """Groups of an optimizer without parameters, and without what the first step of a schedule has changed."""
    if not isinstance(wrapper, OptimWrapper):
        return []
    groups = [{name: value for name, value in group.items() if name != 'params'} for group in wrapper.param_groups]
    return [{name: group.get(f'initial_{name}', value) for name, value in group.items()} for group in groups]
