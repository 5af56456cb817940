"""The config that a checkpoint carries: read as plain data, and built from registered names alone."""

import ast
import math
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest import mock

from mmengine.config import Config
from mmengine.config.utils import MODULE2PACKAGE
from mmengine.registry import registry

from mmsoft.checkpoints import CheckpointError

from .parts import walk_dicts

# What predicting needs of it; all else, such as custom_imports, is not looked at.
_USED = ('model', 'test_dataloader', 'default_scope')
_LIBRARIES = {*MODULE2PACKAGE, 'mmengine', 'mmcv', 'mmsoft'}
_INFINITE = dict(inf=math.inf, nan=math.nan)  # the one NaN, which equals itself within a list
# What names files that other libraries read, or run.
_FILES = ('teacher_config', 'language_model', 'lang_model_name', 'checkpoint_path')
_WAY_OUT = 'name the config file as well'


def carried_config(content: Any, source: str) -> Config:
    """What predicting needs of the config in a loaded checkpoint, none of which is run.

    It is built within ``registered_names``. OpenMMLab evaluates a few strings of a model (mmcv's kind of nms), and
    some models run or read files that it names: strings that could be more than a name or a path, types of other
    libraries and such files are refused.
    """
    meta = content.get('meta') if isinstance(content, Mapping) else None
    text = meta.get('cfg') if isinstance(meta, Mapping) else None
    if not isinstance(text, str):
        raise CheckpointError(f'{source} holds weights and no config: {_WAY_OUT}')
    try:
        tree = evaluate_config(text)
    except Exception as error:  # hostile text makes Python's parser fail in many ways
        raise CheckpointError(f'the config in {source} is not made of plain values alone: {_WAY_OUT}') from error
    absent = [key for key in _USED[:2] if not isinstance(tree.get(key), dict)]
    if absent:
        raise CheckpointError(f'the config in {source} has no {" and no ".join(absent)}: {_WAY_OUT}')
    for part in walk_dicts([tree[key] for key in _USED[:2]]):
        _shorten(part)
    tree['default_scope'] = tree.get('default_scope') or _library(tree['model'].get('type'))
    if tree['default_scope'] not in _LIBRARIES:
        raise CheckpointError(
            f"the config in {source} has the scope {tree['default_scope']!r}, none of OpenMMLab's: {_WAY_OUT}"
        )
    for part in walk_dicts(tree['model']):
        odd = next((name for name in _FILES if part.get(name)), '')
        odd = odd or next((text for text in _texts(part) if _is_odd(text)), '')
        library, dot, _ = str(part.get('type')).rpartition('.')
        odd = odd or (part['type'] if dot and library not in _LIBRARIES else '')
        if odd:
            raise CheckpointError(f'the model in {source} has {odd[:80]!r}, which may run code: {_WAY_OUT}')
    return Config({key: tree[key] for key in _USED if key in tree})


def _shorten(part: dict) -> None:
    """A class by the name that it is registered with: ``mmdet.RetinaNet`` for ``mmdet.models.detectors.RetinaNet``."""
    library, *inner = str(part.get('type')).split('.')
    if len(inner) > 1 and library in {*_LIBRARIES, 'torch'}:
        part['type'] = inner[-1] if library == 'torch' else f'{library}.{inner[-1]}'


def _library(kind: Any) -> str:
    """The scope where none is given: that of the model."""
    library = str(kind).split('.')[0]
    return library if library in MODULE2PACKAGE else 'mmengine'


def _texts(part: Mapping[str, Any]) -> Iterator[str]:
    """Strings of a dict and of lists in it."""
    pending = [*part, *part.values()]
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, (list, tuple)):
            pending += value


def _is_odd(text: str) -> bool:
    """Whether it has brackets, quotes or assignments, without which Python calls nothing; ``{}`` holds a place."""
    return not re.fullmatch(r'([\w ./:,@+~-]|\{\})*', text)


@contextmanager
def registered_names(source: str) -> Iterator[None]:
    """In here MMEngine builds what is registered; else it would import, and call, whatever a dotted name says.

    Registered are OpenMMLab's parts and ours, and those of modules that the program has imported.
    """

    def import_known(name: str, *package: str) -> Any:
        top = name.split('.')[0]
        if top not in _LIBRARIES and top not in sys.modules:
            raise ImportError(f'{name!r} is none of OpenMMLab', name=name)
        return import_module(name, *package)

    with (
        mock.patch.object(registry, 'get_object_from_string', return_value=None),
        mock.patch.object(registry, 'import_module', import_known),
    ):
        try:
            yield
        except KeyError as error:
            if 'registry' not in str(error):
                raise
            reason = str(error.args[0]).partition('. ')[0]
            raise CheckpointError(
                f'the config in {source} cannot be built: {reason}; import the module that registers it, or {_WAY_OUT}'
            ) from error


def evaluate_config(text: str) -> dict:
    """The values of ``name = value`` lines, without running them."""
    return {statement.targets[0].id: _evaluate(statement.value) for statement in ast.parse(text).body}


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'dict':
        named = {keyword.arg: _evaluate(keyword.value) for keyword in node.keywords}
        return dict(*map(_evaluate, node.args), **named)
    if isinstance(node, ast.Dict):
        return {_evaluate(key): _evaluate(value) for key, value in zip(node.keys, node.values, strict=True)}
    if isinstance(node, (ast.List, ast.Tuple)):
        return (list if isinstance(node, ast.List) else tuple)(_evaluate(value) for value in node.elts)
    if isinstance(node, ast.Name) and node.id in ('inf', 'nan'):
        return _INFINITE[node.id]
    return ast.literal_eval(node)
