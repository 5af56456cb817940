"""What was found, written in the forms that the data set classes of mmdet, mmsegmentation and ours read."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmsoft.weights.writing import whole_file

from .found import PARTS, Found, Object, OwnDataError, Picture
from .label_maps import UNLABELLED, read_map

BACKGROUND = 'background'


def write(found: Found, folder: Path, task: str) -> None:
    """Files of annotations for each part below ``folder``; pictures stay where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    if task == 'labels':
        _name_background(found)
        if len(found.classes) > UNLABELLED:
            raise OwnDataError(
                f'{len(found.classes)} classes are more than the {UNLABELLED} that a label map tells apart'
            )
        for picture in found.pictures:
            if picture.path != picture.path.strip() or '\n' in picture.path:  # mmsegmentation strips the lines of lists
                raise OwnDataError(f'{picture.path!r} begins or ends with a blank, or has a line break: rename it')
            _write_map(found, picture, folder / 'label_maps' / f'{picture.path}.png')
    for part in PARTS:
        pictures = found.of(part)
        if not pictures:
            continue
        if task == 'labels':
            put(folder / f'{part}.txt', ''.join(f'{picture.path}\n' for picture in pictures))
        elif task == 'classes':
            put(folder / f'{part}.csv', _table(pictures))
        else:
            put(folder / f'{part}.json', json.dumps(coco_of(found, pictures), indent=1, ensure_ascii=False))


def put(path: Path, text: str) -> None:
    with whole_file(path) as partial:
        partial.write_text(text, encoding='utf-8', newline='\n')


def _table(pictures: list[Picture]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerows((picture.path, *picture.labels) for picture in pictures)
    return text.getvalue()


def coco_of(found: Found, pictures: list[Picture]) -> dict[str, Any]:
    """COCO's JSON of pictures, with the data's own ids of images and classes, so that results have them.

    Of pictures of other parts, ``others`` has the ids, unless two pictures share one.
    """
    numbers, images, annotations = _class_ids(found), [], []
    for number, picture in zip(_image_ids(found, pictures), pictures, strict=True):
        images.append(dict(id=number, file_name=picture.path, width=picture.size[0], height=picture.size[1]))
        for entry in picture.objects:
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=number,
                    category_id=numbers[entry.label],
                    bbox=[round(value, 3) for value in entry.box],
                    area=round(area_of(entry, picture), 3),
                    iscrowd=int(entry.crowd),
                    **(dict(segmentation=entry.mask) if entry.mask else {}),
                )
            )
    others = [dict(id=p.id, file_name=p.path) for p in found.pictures if p.part != pictures[0].part]
    return dict(
        images=images,
        annotations=annotations,
        categories=[dict(id=n, name=c) for c, n in numbers.items()],
        others=others if _have_ids(found.pictures) else [],
    )


def _class_ids(found: Found) -> dict[str, int]:
    """Classes in order; those that the data does not know have numbers above its ids, or from 1."""
    free = count(max(found.ids.values(), default=0) + 1)
    return {name: found.ids[name] if name in found.ids else next(free) for name in found.classes}


def _image_ids(found: Found, pictures: list[Picture]) -> Sequence[int]:
    """The data's own, or from 1 where it has none, or one for two pictures."""
    if _have_ids(pictures):
        return [picture.id for picture in pictures]
    if any(picture.id is not None for picture in pictures):
        found.remarks.append(
            f'ids of the pictures for {pictures[0].part} are no whole numbers, or of two pictures: results count from 1'
        )
    return range(1, len(pictures) + 1)


def _have_ids(pictures: list[Picture]) -> bool:
    ids = [picture.id for picture in pictures]
    return len(set(ids)) == len(ids) and all(type(number) is int for number in ids)


def area_of(entry: Object, picture: Picture) -> float:
    """Pixels of its mask, or of its box."""
    return float(mask_of(entry, picture).sum()) if entry.mask else entry.box[2] * entry.box[3]


def mask_of(entry: Object, picture: Picture) -> np.ndarray:
    """Its pixels, (H, W) bool."""
    from pycocotools import mask as coder

    mask, (width, height) = entry.mask, picture.size
    if not (isinstance(mask, Mapping) and not isinstance(mask['counts'], list)):
        mask = coder.frPyObjects(mask, height, width)
        mask = coder.merge(mask) if isinstance(mask, list) else mask
    return coder.decode(mask).astype(bool)


def _name_background(found: Found) -> None:
    """Where objects are outlined, the rest is a class as well: the first, unless one is called so."""
    if not found.values and BACKGROUND not in found.classes:
        found.classes = [BACKGROUND, *found.classes]
        found.remarks.append(f'pixels outside of all outlines are a class of their own, {BACKGROUND!r}')


def _write_map(found: Found, picture: Picture, path: Path) -> None:
    """8 bits a pixel: the number of a class, or 255."""
    labels = _translated(found, picture) if picture.label_map else _drawn(found, picture)
    values, counts = np.unique(labels[labels != UNLABELLED], return_counts=True)
    picture.pixels = dict(zip(values.tolist(), counts.tolist(), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        Image.fromarray(labels).save(partial, format='PNG')


def _translated(found: Found, picture: Picture) -> np.ndarray:
    values, places = np.unique(read_map(picture.label_map, found.by_colour), return_inverse=True)
    numbers = np.array([found.values.get(int(value), UNLABELLED) for value in values], np.uint8)
    return numbers[places].reshape(picture.size[::-1])


def _drawn(found: Found, picture: Picture) -> np.ndarray:
    """Smaller objects in front of larger ones; crowds are not labelled."""
    labels = np.full(picture.size[::-1], found.classes.index(BACKGROUND), np.uint8)
    masks = [(mask_of(entry, picture), entry) for entry in picture.objects if entry.mask]
    for mask, entry in sorted(masks, key=lambda pair: -pair[0].sum()):
        labels[mask] = UNLABELLED if entry.crowd else found.classes.index(entry.label)
    return labels
