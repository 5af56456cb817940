"""Pictures without labels, prepared as a model's test pipeline says."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.config import Config
from mmengine.dataset import Compose
from torch.utils.data import Dataset

from mmsoft.datasets.class_folders import ClassSample, make_transform
from mmsoft.datasets.layout import leaf_datasets
from mmsoft.datasets.reading import check_sides
from mmsoft.engine.parts import kind_of, pipelines
from mmsoft.engine.predictor import PICTURES
from mmsoft.engine.tasks import CLASSIFICATION, task_of
from mmsoft.registry import DATASETS, TRANSFORMS

from .reading import TeacherError

TRIES = 20  # pictures that are read in search of a sound one


@DATASETS.register_module()
class Pictures(Dataset):
    """All pictures below folders, through a pipeline; what cannot be read, another one stands for.

    Args:
        data_root: Folders, or files.
        pipeline: Steps, the first of which reads ``img_path``; a step that gives None asks for another picture.
    """

    metainfo: Mapping[str, Any] = {}

    def __init__(self, data_root: Sequence[str], pipeline: Sequence[Mapping[str, Any]]) -> None:
        self.files, self.pipeline = find_pictures(data_root), Compose(pipeline)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        data = self.pipeline(dict(img_path=self.files[index], img_id=index))
        return self[int(np.random.randint(len(self)))] if data is None else data


def find_pictures(places: Sequence[str], option: str = '--images') -> list[str]:
    """Files in a fixed order, or an error where a place has none, which tells of the ``option`` that gives others."""
    found = []
    for place in places:
        path = Path(place).expanduser()
        files = [Path(where, name) for where, _, names in os.walk(path) for name in names] if path.is_dir() else [path]
        kept = [str(file) for file in files if file.suffix.lower() in PICTURES and file.is_file()]
        if not kept:
            raise TeacherError(
                f'there are no pictures in {str(place)!r} (working directory {str(Path.cwd())!r}); give {option} a '
                f'folder of files that end in {", ".join(PICTURES)}'
            )
        found += sorted(kept)
    return found


def own_places(cfg: Config, part: str = 'train') -> list[str]:
    """Where the config's pictures of a part lie, none where it has no such part; annotations are not looked at."""
    places = []
    for leaf in leaf_datasets(cfg[f'{part}_dataloader'].dataset if cfg.get(f'{part}_dataloader') else []):
        prefix = leaf.get('data_prefix') or {}
        inner = leaf.get('split') or prefix.get('img') or prefix.get('img_path') or ''
        places.append(str(Path(leaf.get('data_root') or '', inner)))
    return places


def picture_steps(cfg: Config, flip: bool = True) -> list[dict[str, Any]]:
    """The config's test pipeline without annotations; with ``flip``, every second picture is mirrored."""
    mirror = [dict(type='RandomFlip', prob=0.5)] if flip else []
    if task_of(cfg) is CLASSIFICATION:
        load = dict(type='LoadImageFromFile', color_type='color_ignore_orientation')
        return [load, dict(type='mmsoft.ClassInputs', transform=dict(cfg.test_dataloader.dataset.transform), flip=flip)]
    steps = [step for step in next(pipelines(cfg.test_dataloader.dataset)) if 'Annotations' not in kind_of(step)]
    return [*steps[:-1], *mirror, steps[-1]]


def check_pictures(cfg: Config, files: Sequence[str], least: int) -> None:
    """Raise unless pictures are prepared to ``least`` pixels and more: the first one that can be read, and, where
    the result follows the picture's size, the smallest and the most unequal one."""
    pictures = Pictures(files[:1], picture_steps(cfg, flip=False))
    _check_first(pictures, files[:TRIES], least)
    if task_of(cfg) is not CLASSIFICATION:  # whose pictures all become one size
        sides = {file: size for file in files if (size := _size(file))}
        for order in (min, _share):
            with contextlib.suppress(DecodingError):  # a run takes another picture for these
                _check_first(pictures, sorted(sides, key=lambda file, by=order: by(sides[file]))[:TRIES], least)


class DecodingError(TeacherError):
    """No picture can be read."""


def _check_first(pictures: Pictures, files: Sequence[str], least: int) -> None:
    why = None
    for file in files:
        pictures.files = [file]
        try:
            shape = tuple(pictures[0]['inputs'].shape[-2:])
        except Exception as error:  # decoders fail in ways of their own
            why = f'{file}: {type(error).__name__}: {error}'
            continue
        if min(shape) < least:
            raise TeacherError(
                f'{file!r} is prepared to {shape[0]} x {shape[1]} pixels, less than a window of {least}: give larger '
                'pictures, or another size to the test pipeline with --cfg-options'
            )
        return
    raise DecodingError(f'none of the first {len(files)} pictures can be read: {why}')


def _size(file: str) -> tuple[int, int] | None:
    """Of the picture's header; nothing is decoded."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.size
    except Exception:  # the same
        return None


def _share(size: tuple[int, int]) -> float:
    return min(size) / max(size)


@TRANSFORMS.register_module()
class ClassInputs(BaseTransform):
    """From a BGR image (H, W, 3) to what a classifier takes; with ``flip``, every second one is mirrored."""

    def __init__(self, transform: Mapping[str, Any], flip: bool = False) -> None:
        self.run, self.flip = make_transform(transform), flip

    def transform(self, results: dict) -> dict[str, Any]:
        from PIL import Image

        image = results['img']
        check_sides(*image.shape[:2])
        mirrored = self.flip and np.random.random() < 0.5
        picture = Image.fromarray(np.ascontiguousarray(image[:, :: -1 if mirrored else 1, ::-1]))
        return dict(inputs=self.run(picture), data_samples=ClassSample(metainfo=dict(img_path=results['img_path'])))
