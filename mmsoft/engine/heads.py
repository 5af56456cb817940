"""How many classes the heads of a detector or segmentor tell apart, compared with those of the data."""

import inspect
import logging
from collections.abc import Iterator, Mapping
from functools import reduce
from typing import Any

from mmengine.config import Config
from mmengine.logging import print_log
from mmengine.registry import MODELS

from mmsoft.datasets.layout import class_lists

from .parts import kind_of

NUMBERS = ('num_classes', 'num_things_classes', 'num_stuff_classes')
# Parts of a model whose classes are not those of the data: objects or none, pretraining, stuff of its own, persons.
OTHER_PARTS = {
    'backbone',
    'rpn_head',
    'reid',
    'semantic_head',
    'train_cfg',
    'test_cfg',
    'init_cfg',
    'data_preprocessor',
}
OTHER_KINDS = {'STDCHead', 'VPDDepthHead'}  # borders or none, and depths


def head_counts(node: Any, place: str = 'model') -> Iterator[tuple[str, int]]:
    """Dotted names and values of the class counts in the config of a model; defaults of the heads' classes as well."""
    if isinstance(node, (list, tuple)):
        for index, part in enumerate(node):
            yield from head_counts(part, f'{place}.{index}')
    if not isinstance(node, Mapping) or kind_of(node) in OTHER_KINDS or node.get('class_agnostic'):
        return
    for name, count in {**_defaults(node.get('type')), **node}.items():
        if name in NUMBERS and isinstance(count, int):
            yield f'{place}.{name}', count
        elif name not in OTHER_PARTS or (name == 'semantic_head' and kind_of(node) == 'PanopticFPN'):
            yield from head_counts(count, f'{place}.{name}')


def _defaults(kind: str | type | None) -> dict[str, Any]:
    """Class counts that a part has unless its config says otherwise, of the first class below it that names some."""
    with MODELS.switch_scope_and_registry(None) as registry:
        kind = registry.get(kind) if isinstance(kind, str) else kind
    for base in inspect.getmro(kind) if isinstance(kind, type) else ():
        options = inspect.signature(base.__init__).parameters
        found = {name: options[name].default for name in NUMBERS if name in options}
        if found or all(option.kind is not option.VAR_KEYWORD for option in options.values()):
            return found
    return {}


def check_heads(cfg: Config, mode: str) -> None:
    """Raise unless every head has the classes of this mode's data (train, val, test).

    Heads that are told classes in words (``language_model``) have no number of them.
    """
    for kind, meta, wrong in _misfits(cfg, mode):
        heads = ', '.join(f'{name} is {count}' for name, count in head_counts(cfg.model) if name in wrong)
        mended = {**wrong, **_weights(cfg, wrong)}
        options = ' '.join(f'{name}={value}' for name, value in mended.items()).replace(', ', ',')
        raise ValueError(
            f'the {mode} data ({kind}) has {len(meta["classes"])} classes, but {heads}: set --cfg-options '
            f'{options}, or name the classes that are meant with metainfo=dict(classes=...) in the data sets'
        )


def fit_heads(cfg: Config, mode: str) -> dict[str, int]:
    """Give every head the classes of this mode's data; dotted names and values of what changed."""
    wrong = next((wrong for _, _, wrong in _misfits(cfg, mode)), {})
    set_counts(cfg, wrong)
    return wrong


def set_counts(cfg: Config, counts: Mapping[str, int]) -> None:
    """Other class counts, by their dotted names, and losses with as many weights."""
    weights = _weights(cfg, counts)
    for name in (name for name, value in weights.items() if value is None):
        print_log(f'{name} is left out: its weights are of other classes', logger='current', level=logging.WARNING)
    cfg.merge_from_dict({**counts, **weights})


def _misfits(cfg: Config, mode: str) -> Iterator[tuple[str, Mapping[str, Any], dict[str, int]]]:
    """Of each data set that heads do not fit: its kind, its metainfo, and what the heads' counts should be."""
    for kind, meta in class_lists(cfg[f'{mode}_dataloader'].dataset):
        wrong = misfits(cfg, meta)
        if wrong:
            yield kind, meta, wrong


def misfits(cfg: Config, meta: Mapping[str, Any]) -> dict[str, int]:
    """Dotted names of the counts that do not fit these classes, and what they should be."""
    found = {} if 'language_model' in cfg.model else dict(head_counts(cfg.model))
    wanted = {name: _wanted(name.rpartition('.')[2], meta) for name in found}
    return {name: count for name, count in wanted.items() if count != found[name]}


def _weights(cfg: Config, changed: Mapping[str, int]) -> dict[str, list | None]:
    """Lists of a weight a class, and perhaps one of none, in the losses of heads that change: as long as is wanted.

    None where classes differ in weight, which is of those classes alone.
    """
    lists, found = {}, dict(head_counts(cfg.model))
    wanted = {**found, **changed}
    for head in dict.fromkeys(name.rpartition('.')[0] for name in changed):
        names = [name for name in found if name.rpartition('.')[0] == head]
        old, new = (sum(counts[name] for name in names) for counts in (found, wanted))
        part = reduce(lambda node, key: node[int(key) if key.isdigit() else key], head.split('.'), cfg)
        for place, loss in _losses(part, head):
            weights = loss.get('class_weight')
            if isinstance(weights, (list, tuple)) and len(weights) in (old, old + 1):
                equal = [weights[0]] * new + list(weights[old:])
                lists[f'{place}.class_weight'] = equal if len(set(weights[:old])) == 1 else None
    return lists


def _losses(head: Mapping, place: str) -> Iterator[tuple[str, Mapping]]:
    """Dotted names and configs of a head's parts, and of those in its lists."""
    for key, part in head.items():
        if isinstance(part, (list, tuple)):
            yield from ((f'{place}.{key}.{n}', each) for n, each in enumerate(part) if isinstance(each, Mapping))
        elif isinstance(part, Mapping):
            yield f'{place}.{key}', part


def _wanted(name: str, meta: Mapping[str, Any]) -> int:
    """Things alone where the data tells them from stuff: boxes and masks are of things."""
    classes = set(meta['classes'])
    stuff = len(classes.intersection(meta.get('stuff_classes', ())))
    return stuff if name == 'num_stuff_classes' else len(classes) - stuff
