"""Small data sets in the forms that people have them in, all of the same drawn scenes."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from mmsoft.datasets.miniature import KINDS, draw_scene

SIZE = (96, 128)  # height, width
NAMES = [kind.ade20k for kind in KINDS]
COLOURS = [(0, 0, 0), (200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (200, 30, 200), (30, 200, 200)]


class Drawn(NamedTuple):
    """A picture (H, W, 3) BGR, and the kind and polygon (n, 2) of each object."""

    image: np.ndarray
    objects: list[tuple[int, np.ndarray]]


def drawn(count: int, size: tuple[int, int] = SIZE) -> Iterator[Drawn]:
    for seed in range(count):
        scene, objects = draw_scene(np.random.default_rng(seed), *size), []
        for kind, mask in zip(scene.kinds, scene.masks, strict=True):
            contours, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
            largest = max(contours, key=cv2.contourArea, default=np.zeros((0, 1, 2)))
            if len(largest) > 2 and np.ptp(largest[:, 0], axis=0).min() > 3:
                objects.append((kind, largest[:, 0]))
        yield Drawn(scene.image, objects)


def box(polygon: np.ndarray) -> list[int]:
    (x, y), (right, bottom) = polygon.min(0).tolist(), polygon.max(0).tolist()
    return [x, y, right - x, bottom - y]


def write_picture(path: Path, image: np.ndarray) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


def coco(root: Path, count: int = 20) -> Path:
    """One file of an odd name, pictures in an odd folder, ids from 100, file names of another machine."""
    images, annotations = [], []
    for index, (image, objects) in enumerate(drawn(count)):
        write_picture(root / 'My Photos' / f'holiday {index}.JPG', image)
        name = f'C:\\Users\\me\\export\\holiday {index}.JPG'
        images.append(dict(id=100 + index, file_name=name, width=SIZE[1], height=SIZE[0]))
        for kind, polygon in objects:
            annotations.append(
                dict(id=len(annotations), image_id=100 + index, category_id=10 * kind + 7, bbox=box(polygon))
            )
            annotations[-1].update(segmentation=[polygon.ravel().tolist()], iscrowd=0)
    categories = [dict(id=10 * number + 7, name=name) for number, name in enumerate(NAMES)]
    content = dict(images=images, annotations=annotations, categories=categories)
    (root / 'export final (2).json').write_text(json.dumps(content, indent=1))
    return root


def voc(root: Path, count: int = 6) -> Path:
    for index, (image, objects) in enumerate(drawn(count)):
        write_picture(root / 'JPEGImages' / f'{index:03}.jpg', image)
        entries = ''
        for kind, polygon in objects:
            x, y, width, height = box(polygon)
            corners = f'<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + width}</xmax><ymax>{y + height}</ymax>'
            entries += f'<object>\n<name>{NAMES[kind]}</name>\n<bndbox>{corners}</bndbox>\n</object>\n'
        size = f'<size><width>{SIZE[1]}</width><height>{SIZE[0]}</height><depth>3</depth></size>'
        xml = root / 'Annotations' / f'{index:03}.xml'
        xml.parent.mkdir(exist_ok=True)
        xml.write_text(f'<annotation>\n<filename>{index:03}.jpg</filename>\n{size}\n{entries}</annotation>\n')
    return root


def yolo(root: Path, count: int = 6, polygons: bool = False) -> Path:
    for index, (image, objects) in enumerate(drawn(count)):
        part = 'valid' if index % 3 == 0 else 'train'
        write_picture(root / part / 'images' / f'p{index}.png', image)
        lines = []
        for kind, polygon in objects:
            x, y, width, height = box(polygon)
            values = [(x + width / 2) / SIZE[1], (y + height / 2) / SIZE[0], width / SIZE[1], height / SIZE[0]]
            values = (polygon / SIZE[::-1]).ravel().tolist() if polygons else values
            lines.append(' '.join(map(str, [kind, *values])))
        text = root / part / 'labels' / f'p{index}.txt'
        text.parent.mkdir(exist_ok=True)
        text.write_text('\n'.join(lines))
    names = json.dumps(NAMES)
    (root / 'data.yaml').write_text(f'train: ../train/images\nval: ../valid/images\nnc: {len(NAMES)}\nnames: {names}\n')
    return root


def labelme(root: Path, count: int = 6) -> Path:
    for index, (image, objects) in enumerate(drawn(count)):
        write_picture(root / f'{index}.jpg', image)
        shapes = [
            dict(label=NAMES[kind], points=polygon.tolist(), shape_type='polygon', group_id=None)
            for kind, polygon in objects
        ]
        content = dict(version='5.0', shapes=shapes, imagePath=f'{index}.jpg', imageData=None)
        content |= dict(imageHeight=SIZE[0], imageWidth=SIZE[1])
        (root / f'{index}.json').write_text(json.dumps(content, indent=2))
    return root


def label_map(objects: list[tuple[int, np.ndarray]]) -> np.ndarray:
    """Numbers (H, W): 0 for the ground, then the kinds."""
    labels = np.zeros(SIZE, np.uint8)
    for kind, polygon in objects:
        cv2.fillPoly(labels, [polygon.astype(np.int32)], kind + 1)
    return labels


def label_maps(root: Path, count: int = 6, colour: bool = False) -> Path:
    for index, (image, objects) in enumerate(drawn(count)):
        write_picture(root / 'pics' / f'a{index}.jpg', image)
        labels = label_map(objects)
        path = root / 'masks' / f'a{index}_mask.png'
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.array(COLOURS, np.uint8)[labels] if colour else labels).save(path)
    names = ['ground', *NAMES]
    if colour:
        lines = [f'{name},{r},{g},{b}' for name, (r, g, b) in zip(names, COLOURS, strict=True)]
        (root / 'class_dict.csv').write_text('\n'.join(['name,r,g,b', *lines]))
    else:
        (root / 'classes.txt').write_text('\n'.join(names))
    return root


def classes(root: Path, count: int = 12, listed: bool = False) -> Path:
    """Six kinds; in folders, or in one folder with a CSV file."""
    rows = []
    for index, (image, objects) in enumerate(drawn(count)):
        for number, (kind, polygon) in enumerate(objects):
            x, y, width, height = box(polygon)
            name = f'{index}_{number}.png'
            path = root / 'all' / name if listed else root / 'flowers' / NAMES[kind] / name
            write_picture(path, image[y : y + height, x : x + width])
            rows.append((f'all/{name}', NAMES[kind]))
    if listed:
        with (root / 'my labels.csv').open('w', newline='') as file:
            csv.writer(file).writerows([('file', 'species'), *rows])
    return root


FORMATS = dict(
    coco=coco,
    voc=voc,
    yolo=yolo,
    yolo_polygons=lambda root: yolo(root, polygons=True),
    labelme=labelme,
    label_maps=label_maps,
    colours=lambda root: label_maps(root, colour=True),
    class_folders=classes,
    csv=lambda root: classes(root, listed=True),
)
