"""Pictures of one class a folder, or in one folder with a file of labels, through timm's transforms."""

import csv
import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.structures import BaseDataElement
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from mmsoft.registry import DATASETS
from mmsoft.versions import require

from .reading import FaultRecord, check_file, check_sides

SUFFIXES = ('.jpeg', '.jpg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.ppm')


class ClassSample(BaseDataElement):
    """What is known of a picture: ``img_path``, ``gt_label``, and once predicted ``pred_scores`` (classes,)."""


class LabelError(ValueError):
    """A file of labels that does not fit its pictures."""


@DATASETS.register_module()
class ClassFolders(Dataset):
    """ImageNet and whatever is laid out like it.

    Args:
        data_root: Holds the folders of ``split`` and of the classes.
        split: A folder of one folder a class; with ``labels``, a folder of pictures.
        transform: Options of timm.data.create_transform.
        labels: A file below ``data_root`` with the label of every picture of a flat folder: lines
            ``name label`` (commas do as well), or one label a line for the pictures in the order of
            their names. A label is the name of a class folder, the number of one in their order from
            0, or, in the challenge's own ground truth, a number that meta.mat beside it explains.
        classes: The folder whose folders are the classes: a part of them in ``split`` keeps their numbers. With
            ``listing``, the names of the classes themselves.
        listing: A CSV file of ``picture,class``, pictures below ``data_root``, in place of folders.
        record: A file for pictures that cannot be read; in training others take their place, in
            evaluation they count as misses.
    """

    def __init__(
        self,
        data_root: str,
        split: str,
        transform: Mapping[str, Any],
        labels: str | None = None,
        classes: str | Sequence[str] = 'train',
        record: str | None = None,
        listing: str | None = None,
    ) -> None:
        config = dict(data_root=data_root, split=split, labels=labels, classes=classes, listing=listing)
        names, self.samples = contents(config)
        self.training = bool(transform.get('is_training'))
        self.transform = make_transform(transform)
        self.faults = FaultRecord(record)
        self.metainfo = dict(classes=names)
        self.data_prefix = dict(img=str(Path(data_root, split)))

    def __len__(self) -> int:
        return len(self.samples)

    def get_data_info(self, index: int) -> dict[str, Any]:
        """What is known of a sample before its picture is read."""
        path, label = self.samples[index]
        return dict(img_path=path, gt_label=label)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.samples[index]
        try:
            check_file(path)
            with Image.open(path) as file:
                check_sides(*file.size)
                picture = file.convert('RGB')
            self.faults.none()
        except MemoryError:
            raise
        except Exception as error:  # decoders fail in ways of their own
            self.faults.add(path, error, 'reading pictures')
            if self.training:
                return self[int(np.random.randint(len(self)))]
            picture, label = Image.new('RGB', (256, 256)), -1  # no prediction equals it
        sample = ClassSample(metainfo=dict(img_path=path), gt_label=label)
        return dict(inputs=self.transform(picture), data_samples=sample)

    def to_picture(self, inputs: Tensor) -> np.ndarray:
        """What the model sees (3, H, W) as a BGR picture (H, W, 3) uint8."""
        from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

        steps = getattr(self.transform, 'transforms', ())
        used = next((step for step in steps if hasattr(step, 'mean') and hasattr(step, 'std')), None)
        mean, std = (used.mean, used.std) if used else (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        rgb = inputs * torch.as_tensor(std).view(-1, 1, 1) + torch.as_tensor(mean).view(-1, 1, 1)
        return np.ascontiguousarray((rgb.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()[..., ::-1])


def make_transform(options: Mapping[str, Any]) -> Callable[[Image.Image], Tensor]:
    """timm.data.create_transform with its options checked: a picture -> (3, H, W)."""
    require('timm')
    from timm.data import create_transform

    known = inspect.signature(create_transform).parameters
    for name in options:
        if name not in known:
            raise ValueError(f"transform has no option {name!r}; timm's create_transform has {', '.join(known)}")
    try:
        transform = create_transform(**options)
    except (AssertionError, TypeError, ValueError, KeyError, IndexError) as error:
        raise ValueError(f'timm makes no transform of {dict(options)}: {type(error).__name__} {error}') from error
    for step in getattr(transform, 'transforms', ()):
        for operation in getattr(step, 'ops', ()):
            if operation.name.startswith('Posterize'):
                operation.level_fn = _at_least_one_bit(operation.level_fn)
    return transform


def _at_least_one_bit(level_fn: Callable) -> Callable:
    """At its strongest timm asks for 0 bits a colour, a black picture, which Pillow refuses from 13 on."""
    return lambda *arguments: (max(1, level_fn(*arguments)[0]),)


def contents(config: Mapping[str, Any]) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
    """Names of the classes, and paths and class numbers of all pictures, of the options of ClassFolders."""
    if config.get('listing'):
        names = tuple(config['classes'])
        return names, read_listing(Path(config['listing']), Path(config['data_root']), names)
    folders, folder, labels = places(config)
    names = class_names(folders, folder, labels)
    return names, find_samples(folder, labels, names)


def classes_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the classes."""
    return tuple(config['classes']) if config.get('listing') else class_names(*places(config))


def read_listing(listing: Path, root: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Paths and class numbers of the pictures in a CSV file."""
    numbers = {name: number for number, name in enumerate(classes)}
    with listing.open(encoding='utf-8', newline='') as file:
        rows = list(csv.reader(file))
    for line, row in enumerate(rows, 1):
        if len(row) != 2 or row[1] not in numbers:
            raise LabelError(f'{str(listing)!r}, line {line}: expected a picture and one of its classes; got {row}')
    return [(str(root / name), numbers[label]) for name, label in rows]


def places(config: Mapping[str, Any]) -> tuple[Path, Path, Path | None]:
    """Where the options of ClassFolders say that the classes, the pictures and the labels are."""
    root, labels = Path(config['data_root']), config.get('labels')
    classes = '' if config.get('listing') else config.get('classes', 'train')
    return root / classes, root / config['split'], root / labels if labels else None


def class_names(classes: Path, split: Path, labels: Path | None) -> tuple[str, ...]:
    """Names in order: of the folders in ``classes``; where there are none, of those in ``split`` or in the labels."""
    for folder in (classes,) if labels else (classes, split):
        if folder.is_dir():
            names = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith('.'))
            if names:
                return tuple(names)
    if labels and labels.is_file():
        found = {label for _, label in _read_labels(labels)}
        if not any(label.isdigit() for label in found):
            return tuple(sorted(found))
        raise LabelError(
            f'the labels in {str(labels)!r} are numbers, which stand for the class folders in {str(classes)!r}: '
            'there are none; give labels by name'
        )
    return ()


def find_samples(folder: Path, labels: Path | None, classes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Paths and class numbers of all pictures."""
    if labels is None:
        return [
            (str(Path(where, file)), number)
            for number, name in enumerate(classes)
            for where, _, files in sorted(os.walk(folder / name))
            for file in sorted(files)
            if file.lower().endswith(SUFFIXES)
        ]
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    entries = _read_labels(labels)
    if entries[0][0] is None:
        if len(entries) != len(pictures):
            raise LabelError(
                f'{str(labels)!r} has {len(entries)} labels, but {str(folder)!r} has {len(pictures)} pictures'
            )
        entries = [(path.stem, label) for path, (_, label) in zip(pictures, entries, strict=True)]
    by_stem = {_stem(name): label for name, label in entries}
    lacking = [path.name for path in pictures if path.stem not in by_stem]
    if lacking:
        raise LabelError(f'{str(labels)!r} has no label for {len(lacking)} pictures, such as {lacking[0]!r}')
    spare = sorted(by_stem.keys() - {path.stem for path in pictures})
    if spare or len(by_stem) < len(entries):
        what = f'pictures that are not in {str(folder)!r}, such as {spare[0]!r}' if spare else 'some pictures twice'
        raise LabelError(f'{str(labels)!r} has labels of {what}')
    numbers = _numbers(set(by_stem.values()), classes, labels)
    return [(str(path), numbers[by_stem[path.stem]]) for path in pictures]


def _numbers(found: set[str], classes: tuple[str, ...], labels: Path) -> dict[str, int]:
    """What every label of a file stands for: all are names of classes, or all are their numbers from 0."""
    by_name = {name: number for number, name in enumerate(classes)}
    by_number = {str(number): number for number in range(len(classes))}
    fitting = [names for names in (by_name, by_number) if found <= names.keys()]
    if not fitting:
        stranger = min(found - by_name.keys() - by_number.keys(), default=min(found - by_name.keys(), default=''))
        raise LabelError(f'{str(labels)!r}: the label {stranger!r} is not one of the {len(classes)} classes')
    if len(fitting) == 2 and any(by_name[label] != by_number[label] for label in found):
        raise LabelError(
            f'{str(labels)!r}: its labels are names of classes and, counted from 0, numbers of others: '
            'give the class folders names that are not numbers'
        )
    return fitting[0]


def _stem(name: str) -> str:
    name = name.rsplit('/', 1)[-1]
    return name.rsplit('.', 1)[0] if name.lower().endswith(SUFFIXES) else name


def _read_labels(labels: Path) -> list[tuple[str | None, str]]:
    """(name of the picture or None, label) of every line, all of one form; a known headline is left out."""
    try:
        lines = labels.read_text(encoding='utf-8').splitlines()
    except UnicodeDecodeError as error:
        raise LabelError(f'{str(labels)!r} is not a text in UTF-8: {error}') from error
    entries = []
    for number, line in enumerate(lines, start=1):
        words = [word.strip() for word in next(csv.reader([line]))] if ',' in line else line.split()
        if not words or words[0] in ('ImageId', '#'):
            continue
        if len(words) > 2 or not all(words):
            raise LabelError(f'{str(labels)!r}, line {number}: expected "name label" or a label alone; got {line!r}')
        # the label's boxes follow it in the challenge's csv
        entries.append((None, words[0]) if len(words) == 1 else (words[0], words[1].split()[0]))
    if len({name is None for name, _ in entries}) != 1:
        raise LabelError(f'{str(labels)!r} has {"lines of two forms" if entries else "no labels"}')
    if re.search('ILSVRC.*ground_truth', labels.name) and all(label.isdigit() for _, label in entries):
        names = _challenge_names(labels)
        if any(int(label) not in names for _, label in entries):
            raise LabelError(f'{str(labels)!r} has numbers that its meta.mat does not explain')
        entries = [(picture, names[int(label)]) for picture, label in entries]
    return entries


def _challenge_names(labels: Path) -> dict[int, str]:
    """The challenge numbers its classes in an order of its own: number -> name of the folder."""
    from scipy.io import loadmat

    meta = labels.with_name('meta.mat')
    if not meta.is_file():
        raise LabelError(
            f'the numbers in {str(labels)!r} are those of the challenge, which only its meta.mat explains: put that '
            f'beside it ({str(meta)!r}), or give labels by the names of the class folders'
        )
    try:
        synsets = np.atleast_1d(loadmat(meta, squeeze_me=True)['synsets'])
        return {int(entry['ILSVRC2012_ID']): str(entry['WNID']) for entry in synsets}
    except Exception as error:  # of a reader of a foreign format
        raise LabelError(f'{str(meta)!r} cannot be read: {type(error).__name__} {error}') from error
