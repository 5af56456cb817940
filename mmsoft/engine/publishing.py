"""Weights for others: a training checkpoint without what is only of this machine, and a card that says what it is."""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config

from mmsoft.checkpoints import EMA_KEY, CheckpointError, load, read_checkpoint
from mmsoft.checkpoints.architecture import read_architecture
from mmsoft.checkpoints.converting import PARTS, select_part, verify
from mmsoft.files import is_file_name, json_plain
from mmsoft.models.family import our_family
from mmsoft.weights.fitting import take_prefix
from mmsoft.weights.sources import HASH_LENGTH, is_remote, of_run, sha256_of
from mmsoft.weights.writing import WRITTEN, to_bytes, write

from .carried import evaluate_config
from .parts import LOADERS, walk_dicts

ROOM = len('-<hash>.safetensors') + 64  # of a file's name, behind the one that is given
CHOICES = (*PARTS, 'model')
KEPT_META = ('epoch', 'iter', 'seed', 'versions', 'dataset_meta', 'weights')
# What a checkpoint of averaged weights has: of our hook, and of MMEngine's, which saves the average as state_dict.
AVERAGED = {EMA_KEY, 'ema_state_dict'}
# Of a config, where a run was and what it went on from.
_OF_THE_RUN = ('work_dir', 'load_from', 'resume')
_PATH = re.compile(r'(?<![\w.:/~\\])(~[\w.-]*|[A-Za-z]:)?[/\\][\w.+@%~-]+([/\\][\w.+@%~-]*)*')


def publish(
    source: str | Path,
    *,
    out_dir: str | Path | None = None,
    name: str | None = None,
    part: str = 'model',
    metrics: str | Path | None = None,
    trust: bool = False,
) -> str:
    """Write ``<name>-<hash>.pth``, ``<name>-<hash>.safetensors`` and the card ``<name>.json``; what was done, as text.

    Averaged weights (``state_dict_ema``) are taken where there are some. ``part`` is all of the
    ``model``, or our ``classifier`` or ``backbone`` in it alone. Of absolute paths in the config and
    the metadata the last component stays; the work directory and what was loaded or resumed go.
    Equal content gives equal files and names.
    """
    source = of_run(source)
    checkpoint = read_checkpoint(source, trust)
    weights = _select(load(checkpoint), part, str(source))
    found = checkpoint.get('meta')
    found = found if isinstance(found, Mapping) else {}
    name = name or _name_of(source, found)
    if not is_file_name(name, ROOM) or name.endswith(WRITTEN):
        raise CheckpointError(f'--name is a short name without folder and suffix; got {name[:200]!r}')
    config, text, remarks = _config_of(found)
    meta = {key: _clean(found[key]) for key in KEPT_META if key in found}
    if config:
        meta['cfg'] = text
    if 'weights' not in meta:
        trained = 'as trained' if 'optimizer' in checkpoint else 'not known'
        averaged = AVERAGED & set(checkpoint)
        meta['weights'] = 'averaged over training (EMA)' if averaged else trained
    contents = {}
    for suffix in WRITTEN:
        content = to_bytes(weights, suffix, meta)
        contents[f'{name}-{_short(hashlib.sha256(content).hexdigest())}{suffix}'] = content
    card = dict(
        name=name,
        part=part,
        tensors=len(weights),
        classes=_classes(meta.get('dataset_meta')),
        architecture=_architecture(weights, config),
        data=_data(config),
        **{key: meta.get(key) for key in ('weights', 'seed', 'epoch', 'iter')},
        metrics=_metrics(source, metrics, remarks),
        versions=meta.get('versions'),
        config=meta.get('cfg'),
    )
    written = _write(_folder(source, out_dir), contents, card)
    lines = [f'{label:<9}{card[label]}' for label in ('weights', 'tensors', 'metrics')]
    lines += [f'written  {path}' for path in written] + [f'note     {remark}' for remark in remarks]
    return '\n'.join(lines)


def _select(weights: dict[str, torch.Tensor], part: str, source: str) -> dict[str, torch.Tensor]:
    if part == 'model':
        return weights
    if any(key.startswith('backbone.') for key in weights):
        weights = take_prefix(weights, 'backbone.', source)
    family = our_family(weights)
    if family is None:
        raise CheckpointError(f'--part {part}: {source!r} holds no backbone of ours; publish it as --part model')
    weights = select_part(weights, part, family)
    verify(weights, source)
    return weights


def _write(folder: Path, contents: Mapping[str, bytes], card: dict[str, Any]) -> list[Path]:
    """Weights first, then their card; where they are."""
    path = folder / f'{card["name"]}.json'
    if path.exists():
        try:
            described = set(json.loads(path.read_text())['files'])
        except (ValueError, KeyError, TypeError):
            described = set()
        if described != set(contents):
            raise CheckpointError(f'{str(path)!r} is the card of other weights: choose another --name or --out-dir')
    card['files'] = {}
    for file, content in contents.items():
        write(content, folder / file)
        card['files'][file] = dict(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    write((json.dumps(json_plain(card), indent=1, default=float) + '\n').encode(), path)
    return [*(folder / file for file in contents), path]


def _folder(source: str | Path, out_dir: str | Path | None) -> Path:
    """Beside the source unless named."""
    folder = Path(out_dir or ('.' if is_remote(source) else Path(source).expanduser().parent)).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(f'--out-dir {str(folder)!r} cannot be made: {error}') from error
    return folder


def _short(digest: str) -> str:
    """Its first digits, up to a letter: decimal digits alone would pass for a date."""
    letter = re.search('[a-f]', digest)
    return digest[: max(HASH_LENGTH, letter.end() if letter else 0)]


def _name_of(source: str | Path, meta: Mapping[str, Any]) -> str:
    """Of the experiment, without its time; else the file's, without suffix and hash."""
    experiment = re.sub(r'_?\d{8}_\d{6}$', '', str(meta.get('experiment_name', '')))
    stem = Path(str(source).split('?')[0]).stem
    return (
        experiment
        if is_file_name(experiment, ROOM)
        else re.sub(rf'-(?=\d*[a-f])[0-9a-f]{{{HASH_LENGTH},64}}$', '', stem)
    )


def _config_of(meta: Mapping[str, Any]) -> tuple[dict, str, list[str]]:
    """The config of a run as it was written, without its paths; its text; remarks."""
    text = meta.get('cfg')
    if not isinstance(text, str):
        return {}, '', ['the checkpoint holds no config: attention, data and seed are not on the card']
    try:
        tree = _without_run(text)
        written = Config(tree).pretty_text
        if evaluate_config(written) != tree:  # a name with quotes in it would be read as code
            raise ValueError(written)
        _data(tree)
    except Exception:  # hostile text makes Python's parser and MMEngine fail in many ways
        return {}, '', ['the config in the checkpoint is left out: it is not made of plain values alone']
    return tree, written, []


def _without_run(text: str) -> dict:
    tree = evaluate_config(text)
    if tree.get('work_dir'):  # files in it keep their names
        tree = evaluate_config(text.replace(f"'{tree['work_dir'].rstrip('/')}/", "'"))
    return _clean({key: value for key, value in tree.items() if key not in _OF_THE_RUN})


def _clean(value: Any) -> Any:
    """Plain values only, and of absolute paths the last component."""
    if isinstance(value, Mapping):
        return {_clean(key): _clean(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return (
            type(value)(_clean(entry) for entry in value) if type(value) in (list, tuple) else list(map(_clean, value))
        )
    if isinstance(value, str):
        return _without_folders(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    return _clean(value.tolist()) if hasattr(value, 'tolist') else None  # of NumPy and torch


def _without_folders(text: str) -> str:
    text = re.sub(r'(?<![\w+])(?!https?:)[a-z0-9+]+://', '/', text)  # a bucket or a disk by address
    if re.match(r'[/\\~]|[A-Za-z]:[/\\]|\.\.[/\\]', text):
        return re.split(r'[/\\]', text.rstrip('/\\'))[-1]
    return _PATH.sub(lambda match: re.split(r'[/\\]', match[0].rstrip('/\\'))[-1], text)


def _architecture(weights: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> dict | None:
    """What the weights of a classifier or backbone show, also inside of a larger model, and the option they do not."""
    if any(key.startswith('backbone.') for key in weights):
        weights = take_prefix(weights, 'backbone.', 'the model')
    try:
        read = read_architecture(weights)
    except CheckpointError:  # of another model, or of a backbone without its last stages
        return None
    types = {f'mmsoft.{kind.__name__}' for kind in (read.family.backbone, read.family.classifier)}
    part = next((part for part in walk_dicts(config.get('model')) if part.get('type') in types), None)
    shown = read.arch._asdict() | {key: value for key, value in read.options.items() if key != 'arch'}
    return {
        'model': config.get('model', {}).get('type'),
        'family': read.family.title,
        'arch': read.name,
        **{option: part.get(option, default) if part else None for option, default in read.family.unseen.items()},
        **shown,
        'num_classes': read.num_classes,
    }


def _classes(dataset_meta: Any) -> list[str] | None:
    """Names, whatever version of MMEngine wrote them: older ones in capitals."""
    found = {str(key).lower(): value for key, value in dataset_meta.items()} if isinstance(dataset_meta, dict) else {}
    return found.get('classes')


def _data(config: Mapping[str, Any]) -> dict[str, dict]:
    """Type and last folder of each data set."""
    data = {}
    for loader in LOADERS:
        parts = list(walk_dicts((config.get(loader) or {}).get('dataset')))
        if parts:
            part = next((part for part in parts if 'data_root' in part), parts[0])
            root = part.get('data_root')
            data[loader.split('_')[0]] = dict(type=part.get('type'), name=root and Path(root).name)
    return data


def _metrics(source: str | Path, file: str | Path | None, remarks: list[str]) -> dict | None:
    """Of the named file, or of the ``metrics.json`` beside the source if it is of this checkpoint."""
    beside = file is None
    path = Path(source).expanduser().with_name('metrics.json') if beside else Path(file).expanduser()
    if beside and (is_remote(source) or not path.is_file()):
        return None
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CheckpointError(f'metrics {str(path)!r} cannot be read: {error}') from error
    if not isinstance(found, dict):
        raise CheckpointError(f'metrics {str(path)!r} must be a dict of names and values; got {type(found).__name__}')
    if beside and found.get('sha256') != sha256_of(Path(source).expanduser()):
        of = Path(str(found.get('checkpoint') or 'an unnamed file')).name
        remarks.append(f'{path} is of another checkpoint ({of}): left out; --metrics takes it all the same')
        return None
    return _clean(found.get('metrics', found))
