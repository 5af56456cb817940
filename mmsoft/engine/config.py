"""Configs made ready to run: options merged, data and weights checked, faults and interruptions provided for."""

import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict
from mmengine.config.utils import ConfigParsingError
from mmengine.registry import init_default_scope
from torch import Tensor

from mmsoft.checkpoints import CheckpointError
from mmsoft.datasets.layout import check_dataset, check_evaluator, class_count, leaf_datasets
from mmsoft.files import shipped
from mmsoft.models.archs import STRIDES
from mmsoft.models.backbone import Backbone, is_pretrained
from mmsoft.models.family import our_family
from mmsoft.registry import MODELS
from mmsoft.weights.sources import is_remote, where_published

from .files import read_without_code
from .parts import LOADERS, kind_of, walk_dicts
from .plain import plain_config
from .sizes import resize_pictures
from .tasks import CLASSIFICATION, task_of

CONFIG_HELP = 'a file, or the name of a shipped config (see mmsoft configs)'
LEAST_IMAGE = STRIDES[-1]  # pixels of a side that make one token of the last stage
# What reads pickles by itself, past our readers: type of a part of a config -> what it reads.
_PICKLE_READERS = dict(OpenImagesChallengeDataset='its hierarchy file', DODDataset='its annotations')
# What MMEngine's Runner reads besides what a config has.
RUNNER_KEYS = (
    *('custom_hooks', 'custom_imports', 'default_hooks', 'launcher', 'load_from', 'resume', 'work_dir', 'compile'),
    *('sync_bn', 'visualizer', 'env_cfg', 'model_wrapper_cfg', 'find_unused_parameters', 'auto_scale_lr'),
    *('experiment_name', 'log_processor', 'log_level', 'randomness', 'optim_wrapper', 'param_scheduler'),
)


def load_config(path: str | Path, options: Mapping[str, Any] | None = None) -> Config:
    """A config, by its file or its shipped name, with ``key=value`` options merged.

    ``data_root=...`` moves every path under the old root.
    """
    path = find_config(path)
    if os.environ.get('MMSOFT_DATA') == '':
        raise ValueError('MMSOFT_DATA is set but empty; set it to the folder that holds the data sets, or unset it')
    read_without_code()
    try:
        cfg = plain_config(Config.fromfile(path))
    except (TypeError, ConfigParsingError) as error:
        if isinstance(error, TypeError) and 'cannot inherit from base' not in str(error):
            raise
        raise ValueError(f'config {str(path)!r}: {error}') from error  # which tells of _delete_=True, or of the base
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


def find_config(path: str | Path) -> Path:
    """The file; if there is none, the shipped config that is called so: ``NAME``, or ``configs/NAME.py``."""
    path = Path(path)
    if path.is_file():
        return path
    names = [file.stem for file in sorted(shipped('configs').glob('*.py'))]
    if path.stem in names and path in (Path(path.stem), Path('configs', f'{path.stem}.py')):
        return shipped('configs') / f'{path.stem}.py'
    near = get_close_matches(path.stem, names, 3)
    hint = f'; shipped, and found by name: {", ".join(near)}' if near else ''
    raise FileNotFoundError(f'config {str(path)!r} does not exist (working directory {str(Path.cwd())!r}){hint}')


def is_config(word: str) -> bool:
    """Whether a command line names a config here, and not a checkpoint."""
    return word.endswith(('.py', '.json', '.yaml', '.yml')) or (shipped('configs') / f'{word}.py').is_file()


def _leaves(cfg: Config) -> Iterator[ConfigDict]:
    """The data sets of all loaders."""
    for name in LOADERS:
        if cfg.get(name):
            yield from leaf_datasets(cfg[name].dataset)


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


def without_pretrained(cfg: Config) -> None:
    """Take the pretrained weights out of every part of the model; other initialisers stay."""
    for part in walk_dicts(cfg.model):
        others = [init for init in _as_list(part.get('init_cfg')) if not is_pretrained(init)]
        if len(others) < len(_as_list(part.get('init_cfg'))):
            part.init_cfg = others or None
        if 'pretrained' in part:
            part.pretrained = None


def check_pretrained(cfg: Config) -> None:
    """Raise unless every local file that the model starts from exists."""
    for source in (init.checkpoint for part in walk_dicts(cfg.model) for init in _pretrained_inits(part)):
        if '://' not in source and not is_remote(source) and not Path(source).expanduser().is_file():
            raise CheckpointError(
                f'the pretrained weights {source!r} do not exist (working directory {str(Path.cwd())!r}). '
                "Three ways out: put the authors' published file or its conversion there (names are translated), or "
                'name it with --cfg-options model.backbone.init_cfg.checkpoint=<file>; pretrain a classifier and name '
                'its checkpoint likewise; or start at random with --no-pretrained.'
                + where_published(source, str(cfg.model.get('backbone', {}).get('type')))
            )


def guard_files(cfg: Config, trust: bool = False) -> None:
    """Whatever file this config names is read without running code from it, or not at all, unless it is trusted."""
    read_without_code(trust)
    for part in () if trust else walk_dicts(cfg._cfg_dict):
        kind = kind_of(part)
        what = 'its files' if part.get('decode_backend') == 'pickle' else _PICKLE_READERS.get(kind)
        if what:
            raise CheckpointError(
                f'{kind} reads {what} as a pickle, which may run code of whoever wrote it; '
                'if you trust them, permit it with --trust-checkpoint'
            )


def trust_pretrained(cfg: Config) -> None:
    """Let the pretrained weights of our own parts be pickles of any kind."""
    for part in walk_dicts(cfg.model):
        if str(part.get('type')).startswith('mmsoft.'):
            for init in _pretrained_inits(part):
                init.trust = True


def _pretrained_inits(part: Mapping[str, Any]) -> Iterator[ConfigDict]:
    yield from filter(is_pretrained, _as_list(part.get('init_cfg')))


def _as_list(init_cfg: Any) -> list:
    return [init_cfg] if isinstance(init_cfg, Mapping) else list(init_cfg or ())


def only_for_classifiers(cfg: Config, options: str, instead: str) -> None:
    if task_of(cfg) is not CLASSIFICATION:
        raise ValueError(f'{options}: for classifiers only; for {cfg.model.type} {instead}')


def start_from(cfg: Config, checkpoint: str, only_head: bool) -> None:
    """Let a classifier start from a checkpoint, with a head for the classes of its data."""
    backbone = cfg.model.backbone
    backbone.num_classes = class_count(cfg.train_dataloader.dataset)
    backbone.init_cfg = dict(type='Pretrained', checkpoint=checkpoint, new_head='always' if only_head else 'differ')
    if only_head:
        with torch.device('meta'):
            backbone.frozen_stages = MODELS.build(dict(backbone, init_cfg=None)).freezable
    lr, epochs = cfg.optim_wrapper.optimizer.lr, cfg.train_cfg.get('max_epochs')
    for hook in cfg.get('custom_hooks') or ():
        if kind_of(hook) == 'CosineSchedule' and epochs:  # those of pretraining are for a higher lr and a longer run
            hook.update(min_lr=lr / 100, warmup_lr=min(hook.get('warmup_lr', 1e-6), lr / 100))
            hook.warmup_epochs = min(hook.warmup_epochs, epochs / 10)


def check_sizes(cfg: Config, sizes: Iterable[int]) -> None:
    """Raise unless this is a classifier that can have pictures of these sizes."""
    for size in sizes:
        only_for_classifiers(cfg, '--sizes', 'change the pipelines of the config')
        _check_side(size)


def _check_side(side: int) -> None:
    if side < LEAST_IMAGE:
        raise ValueError(f'pictures must have sides of at least {LEAST_IMAGE}; got {side}')


def set_img_size(cfg: Config, size: int | Sequence[int], tables: bool = True) -> None:
    """Pictures of another size, (height, width) or one for both; with ``tables``, position tables of that size as well.

    A classifier's are square.
    """
    sides = (size,) if isinstance(size, int) else tuple(size)
    if len(sides) not in (1, 2):
        raise ValueError(f'--img-size takes a height and a width, or one number for both; got {sides}')
    height, width = sides[0], sides[-1]
    _check_side(min(height, width))
    if task_of(cfg) is not CLASSIFICATION:
        resize_pictures(cfg, height, width)
    elif height != width:
        raise ValueError(f"a classifier's pictures are square; got --img-size {height} {width}")
    for leaf in _leaves(cfg) if task_of(cfg) is CLASSIFICATION else ():
        leaf.transform.input_size = height
    if tables and _has_tables(cfg):
        cfg.model.backbone.img_size = height if height == width else [height, width]


def _has_tables(cfg: Config) -> bool:
    """Whether the backbone is a classifier, or one of ours, or one that is built as ours are."""
    if task_of(cfg) is CLASSIFICATION:
        return True
    kind = cfg.model.get('backbone', {}).get('type')
    kind = MODELS.get(kind) if isinstance(kind, str) else kind
    return isinstance(kind, type) and issubclass(kind, Backbone)


def model_for(cfg: Config, weights: Mapping[str, Tensor]) -> ConfigDict:
    """The config's model, with position tables as large as in these weights: they are resized once, to the pictures."""
    weights = {name.removeprefix('backbone.'): value for name, value in weights.items()}
    family = our_family(weights)
    size = family.img_size(weights) if family else None
    model = copy.deepcopy(cfg.model)
    if size and _has_tables(cfg):
        model.backbone.img_size = list(size)
    return model


def check_levels(cfg: Config) -> None:
    """Raise where a neck passes by maps that a plain network makes by layers of its own: these would get no gradient.

    Several processes wait for every gradient.
    """
    backbone, neck = cfg.model.get('backbone', {}), cfg.model.get('neck') or {}
    start = neck.get('start_level', 0) if isinstance(neck, Mapping) else 0
    indices = list(backbone.get('out_indices', range(len(STRIDES))))
    if kind_of(backbone) == 'InLineDeiT' and start > 0 and len(indices) > start:
        channels = str(list(neck.in_channels[start:])).replace(' ', '')
        raise ValueError(
            f'{kind_of(neck)} begins at level {start}, and nobody reads what InLineDeiT builds before it: set '
            f'--cfg-options model.backbone.out_indices={str(indices[start:]).replace(" ", "")} '
            f'model.neck.in_channels={channels} model.neck.start_level=0'
        )


def check_data(cfg: Config, *modes: str, classes: bool = True) -> list[str]:
    """Raise DataError unless the data of these modes (train, val, test) is complete; give remarks on annotations.

    With ``classes``, the model must have as many as its data.
    """
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    remarks = {}
    for mode in modes:
        if cfg.get(f'{mode}_dataloader'):
            dataset = cfg[f'{mode}_dataloader'].dataset
            remarks.update(dict.fromkeys(check_dataset(dataset)))
            check_evaluator(cfg.get(f'{mode}_evaluator'), dataset, f'{mode}_evaluator')
            if classes:
                task_of(cfg).check(cfg, mode)
    return list(remarks)
