"""Pictures of one class a folder, or in one folder with a file of labels, through timm's reader and transforms."""

import csv
import re
from collections.abc import Mapping
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

from .reading import FaultRecord

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
        classes: The folder whose folders are the classes: a part of them in ``split`` keeps their numbers.
        record: A file for pictures that cannot be read; in training others take their place, in
            evaluation they count as misses.
    """

    def __init__(
        self,
        data_root: str,
        split: str,
        transform: Mapping[str, Any],
        labels: str | None = None,
        classes: str = 'train',
        record: str | None = None,
    ) -> None:
        require('timm')
        from timm.data import create_transform

        root = Path(data_root)
        self.folder, self.labels = root / split, None if labels is None else root / labels
        names = class_names(root / classes, self.folder, self.labels)
        self.samples = find_samples(self.folder, self.labels, names)
        self.training = bool(transform.get('is_training'))
        self.transform = create_transform(**transform)
        self.faults = FaultRecord(record)
        self.metainfo = dict(classes=names)
        self.data_prefix = dict(img=str(self.folder))

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path, label = self.samples[index]
        try:
            with Image.open(path) as picture:
                inputs = self.transform(picture.convert('RGB'))
        except MemoryError:
            raise
        except Exception as error:  # decoders fail in ways of their own
            self.faults.add(path, error, 'reading pictures')
            if self.training:
                return self[int(np.random.randint(len(self)))]
            inputs, label = self.transform(Image.new('RGB', (256, 256))), -1  # no prediction equals it
        else:
            self.faults.none()
        return dict(inputs=inputs, data_samples=ClassSample(metainfo=dict(img_path=path), gt_label=label))

    def to_picture(self, inputs: Tensor) -> np.ndarray:
        """What the model sees (3, H, W) as a BGR picture (H, W, 3) uint8."""
        from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

        steps = getattr(self.transform, 'transforms', ())
        used = next((step for step in steps if hasattr(step, 'mean') and hasattr(step, 'std')), None)
        mean, std = (used.mean, used.std) if used else (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
        rgb = inputs * torch.as_tensor(std).view(-1, 1, 1) + torch.as_tensor(mean).view(-1, 1, 1)
        return np.ascontiguousarray((rgb.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()[..., ::-1])


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
    numbers = {name: number for number, name in enumerate(classes)}
    if labels is None:
        from timm.data.readers.reader_image_folder import find_images_and_targets

        samples, _ = find_images_and_targets(str(folder), types=SUFFIXES, class_to_idx=numbers)
        return [(str(path), label) for path, label in samples]
    pictures = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    entries = _read_labels(labels)
    if all(name is None for name, _ in entries):
        if len(entries) != len(pictures):
            raise LabelError(
                f'{str(labels)!r} has {len(entries)} labels, but {str(folder)!r} has {len(pictures)} pictures'
            )
        by_stem = {path.stem: label for path, (_, label) in zip(pictures, entries, strict=True)}
    else:
        by_stem = {_stem(name): label for name, label in entries if name is not None}
    samples = []
    for path in pictures:
        label = by_stem.get(path.stem)
        if label is None:
            raise LabelError(f'{str(labels)!r} has no label for {path.name!r}')
        number = numbers.get(label, int(label) if label.isdigit() else -1)
        if not 0 <= number < len(classes):
            raise LabelError(
                f'{str(labels)!r}: the label {label!r} of {path.name!r} is not one of the {len(classes)} classes'
            )
        samples.append((str(path), number))
    return samples


def _stem(name: str) -> str:
    name = name.rsplit('/', 1)[-1]
    return name.rsplit('.', 1)[0] if name.lower().endswith(SUFFIXES) else name


def _read_labels(labels: Path) -> list[tuple[str | None, str]]:
    """(name of the picture or None, label) of every line; a headline is left out."""
    entries = []
    for line in labels.read_text().splitlines():
        words = next(csv.reader([line])) if ',' in line else line.split()
        if words and words[0] not in ('ImageId', 'filename', '#'):
            entries.append((None, words[0]) if len(words) == 1 else (words[0], words[1].split()[0]))
    if not entries:
        raise LabelError(f'{str(labels)!r} has no labels')
    if re.search('ILSVRC.*ground_truth', labels.name) and all(label.isdigit() for _, label in entries):
        names = _challenge_names(labels)
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
    synsets = loadmat(meta, squeeze_me=True)['synsets']
    return {int(entry['ILSVRC2012_ID']): str(entry['WNID']) for entry in np.atleast_1d(synsets)}
