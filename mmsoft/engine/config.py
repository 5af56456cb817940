"""Configs made ready to run: options merged, data and weights checked, faults and interruptions provided for."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict

from mmsoft.checkpoints import CheckpointError
from mmsoft.datasets.layout import check_dataset

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')
# What MMEngine's Runner reads besides what a config has.
RUNNER_KEYS = (
    *(
        'custom_hooks',
        'custom_imports',
        'default_hooks',
        'launcher',
        'load_from',
        'resume',
        'work_dir',
        'compile',
        'sync_bn',
    ),
    *('visualizer', 'env_cfg', 'model_wrapper_cfg', 'find_unused_parameters', 'auto_scale_lr', 'experiment_name'),
    *('log_processor', 'log_level', 'randomness', 'optim_wrapper', 'param_scheduler'),
)
FAULTS = 'faults.jsonl'  # in the work directory: files that could not be read


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """A config file with ``key=value`` options merged; ``data_root=...`` moves every path under the old root."""
    if not Path(path).is_file():
        raise FileNotFoundError(f'config {str(path)!r} does not exist (working directory {str(Path.cwd())!r})')
    cfg = Config.fromfile(path)
    old_root = cfg.get('data_root')
    _reject_unknown_options(cfg, options or {})
    cfg.merge_from_dict(dict(options or {}))
    if old_root and cfg.data_root != old_root:
        loaders = [cfg[name] for name in (*LOADERS, 'val_evaluator', 'test_evaluator') if cfg.get(name)]
        if not sum(_move(part, old_root.rstrip('/'), cfg.data_root.rstrip('/')) for part in loaders):
            raise ValueError(
                f'--cfg-options data_root={cfg.data_root}: no path of the config lies below {old_root!r}; '
                'set the data_root of each data loader instead'
            )
    return cfg


def _reject_unknown_options(cfg: Config, options: Mapping[str, Any]) -> None:
    """A misspelt first name would set what nothing reads."""
    known = {*cfg, *RUNNER_KEYS}
    for name in options:
        if name.split('.')[0] not in known:
            raise ValueError(
                f'--cfg-options {name}: the config has no {name.split(".")[0]!r}; it has {", ".join(sorted(known))}'
            )


def _move(node: Any, old: str, new: str) -> int:
    """Replace the leading folder of every path below ``node``; how many there were."""
    count = 0
    for key, value in list(node.items() if isinstance(node, dict) else enumerate(node)):
        if isinstance(value, (dict, list)):
            count += _move(value, old, new)
        elif isinstance(value, str) and (value == old or value.startswith(old + '/')):
            node[key] = new + value[len(old) :]
            count += 1
    return count


def pipelines(dataset: Mapping[str, Any]) -> Iterator[list]:
    """Every pipeline in the config of a data set that may repeat, join or wrap others."""
    for key, value in dataset.items():
        if key == 'pipeline':
            yield value
        elif isinstance(value, Mapping):
            yield from pipelines(value)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, Mapping):
                    yield from pipelines(entry)


def walk_dicts(node: Any) -> Iterator[ConfigDict]:
    """Every dict of a config, outer ones first."""
    if isinstance(node, Mapping):
        yield node
        node = list(node.values())
    if isinstance(node, (list, tuple)):
        for value in node:
            yield from walk_dicts(value)


def without_pretrained(cfg: Config) -> None:
    """Take the pretrained weights out of every part of the model."""
    for part in walk_dicts(cfg.model):
        if _pretrained(part.get('init_cfg')):
            part.init_cfg = None
        if 'pretrained' in part:
            part.pretrained = None


def check_pretrained(cfg: Config) -> None:
    """Raise unless every local file that the model starts from exists."""
    for part in walk_dicts(cfg.model):
        source = _pretrained(part.get('init_cfg'))
        if source and '://' not in source and not Path(source).expanduser().is_file():
            raise CheckpointError(
                f'the pretrained weights {source!r} do not exist (working directory {str(Path.cwd())!r}). '
                "Three ways out: put the authors' published file or its conversion there (names are translated), or "
                'name it with --cfg-options model.backbone.init_cfg.checkpoint=<file>; pretrain a classifier and name '
                'its checkpoint likewise; or start at random with --no-pretrained'
            )


def _pretrained(init_cfg: Any) -> str | None:
    if isinstance(init_cfg, Mapping) and init_cfg.get('type') == 'Pretrained':
        return init_cfg.checkpoint
    return None


def check_data(cfg: Config, *modes: str) -> list[str]:
    """Raise DataError unless the data of these modes (train, val, test) is complete; give remarks on annotations."""
    from mmengine.registry import init_default_scope

    init_default_scope(cfg.get('default_scope', 'mmengine'))
    remarks = {}
    for mode in modes:
        if cfg.get(f'{mode}_dataloader'):
            remarks.update(dict.fromkeys(check_dataset(cfg[f'{mode}_dataloader'].dataset)))
    return list(remarks)
