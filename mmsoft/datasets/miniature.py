"""A miniature world in the real layouts of COCO, ADE20K, Cityscapes and ImageNet, for demos and tests.

Scenes hold textured shapes that overlap, over a ground and a sky. They are drawn from a seed, so a world
is the same wherever it is written.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from filelock import FileLock

WORLDS = ('coco', 'ade20k', 'cityscapes', 'imagenet')
# Where each world lies under the root of the data.
FOLDERS = dict(coco='coco', ade20k='ade/ADEChallengeData2016', cityscapes='cityscapes', imagenet='imagenet')
VERSION = 1  # of what is drawn; raise it when that changes
STAMP = 'miniature.json'  # the file that tells a world of ours, and what it was made from
LEAST_SIDE = 32  # smaller images are not trained on by the configs
LEAST_VISIBLE = 30  # pixels; an object that shows fewer is not labelled
UNLABELLED = 255
MARGIN = 1.3  # side of a picture of one object, over that of its box
LEAST_SHARE = 0.1  # of such a picture that its object takes


class Kind(NamedTuple):
    """A kind of object: its outline about the origin, its hue, and its name in each data set."""

    outline: Callable[[], np.ndarray]
    hue: int  # OpenCV's, 0 to 179
    coco: str
    ade20k: str
    cityscapes: str


def _polygon(radii: list[float], turn: float = 0.0) -> np.ndarray:
    """Corners at even angles and these radii: (n, 2)."""
    angles = turn + np.linspace(0, 2 * math.pi, len(radii), endpoint=False)
    return np.stack((np.cos(angles), np.sin(angles)), 1) * np.array(radii)[:, None]


KINDS = (
    Kind(lambda: _polygon([1.0] * 32), 0, 'frisbee', 'plate', 'traffic light'),
    Kind(lambda: _polygon([1.0] * 4, math.pi / 4) * [1.2, 0.8], 30, 'book', 'box', 'car'),
    Kind(lambda: _polygon([1.1] * 3, math.pi / 6), 60, 'kite', 'flag', 'traffic sign'),
    Kind(lambda: _polygon([1.1, 0.5] * 5), 90, 'teddy bear', 'lamp', 'person'),
    Kind(lambda: _polygon([1.15, 0.45, 0.45] * 4, math.pi / 12), 120, 'scissors', 'fan', 'bicycle'),
    Kind(lambda: _polygon([0.55, 1.1] * 2) * [1.0, 1.3], 150, 'banana', 'vase', 'pole'),
)
# Sky and ground have labels in the segmentation sets only.
STUFF = {'ade20k': ('sky', 'floor'), 'cityscapes': ('sky', 'road')}


class Scene(NamedTuple):
    """An image (H, W, 3) uint8 BGR, the kinds of its objects, their visible masks, and the first row of the ground."""

    image: np.ndarray
    kinds: list[int]
    masks: list[np.ndarray]
    horizon: int


def draw_scene(rng: np.random.Generator, height: int, width: int) -> Scene:
    """Two to six objects over sky and ground, later ones in front."""
    horizon = int(height * rng.uniform(0.35, 0.65))
    sky = _texture(rng, height, width, hue=int(rng.integers(100, 125)), saturation=60, value=200)
    ground = _texture(rng, height, width, hue=int(rng.integers(10, 40)), saturation=70, value=110)
    image = np.where(np.arange(height)[:, None, None] < horizon, sky, ground)
    owner = np.full((height, width), -1)
    kinds = [int(kind) for kind in rng.integers(len(KINDS), size=int(rng.integers(2, 7)))]
    for index, kind in enumerate(kinds):
        scale = min(height, width) * rng.uniform(0.08, 0.22)
        angle = rng.uniform(-0.5, 0.5)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        centre = np.array([rng.uniform(0.1, 0.9) * width, rng.uniform(0.1, 0.9) * height])
        points = np.round(KINDS[kind].outline() @ turn.T * scale + centre).astype(np.int32)
        mask = np.zeros((height, width), np.uint8)
        cv2.fillPoly(mask, [points], 1)
        hue = (KINDS[kind].hue + int(rng.integers(-8, 9))) % 180
        texture = _texture(rng, height, width, hue, saturation=190, value=int(rng.integers(130, 230)))
        image = np.where(mask[..., None] > 0, texture, image)
        owner[mask > 0] = index
    masks = [owner == index for index in range(len(kinds))]
    seen = [index for index, mask in enumerate(masks) if mask.sum() >= LEAST_VISIBLE]
    return Scene(image.astype(np.uint8), [kinds[i] for i in seen], [masks[i] for i in seen], horizon)


def _texture(rng: np.random.Generator, height: int, width: int, hue: int, saturation: int, value: int) -> np.ndarray:
    """Stripes of a random direction and width, with noise, in one hue: (H, W, 3) BGR."""
    y, x = np.mgrid[:height, :width]
    angle, period = rng.uniform(0, math.pi), rng.uniform(6, 20)
    stripes = 25 * np.sin(2 * math.pi * (x * math.cos(angle) + y * math.sin(angle)) / period)
    brightness = np.clip(value + stripes + rng.normal(0, 10, (height, width)), 0, 255)
    hsv = np.stack((np.full_like(brightness, hue), np.full_like(brightness, saturation), brightness), -1)
    return cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR)


def scenes(count: int, size: tuple[int, int], seed: tuple[int, ...]) -> Iterator[Scene]:
    """``count`` scenes of (height, width); scene i of a seed is the same whatever the count."""
    for index in range(count):
        yield draw_scene(np.random.default_rng((*seed, index)), *size)


def write_world(
    world: str, root: str | Path, train: int = 240, val: int = 60, size: tuple[int, int] = (192, 256), seed: int = 0
) -> Path:
    """Write ``world`` (one of WORLDS) under ``root`` in the data set's own layout; done once, then reused.

    A world that was written with other arguments is replaced. Gives the folder that the configs call ``data_root``.
    """
    if world not in WORLDS:
        raise ValueError(f'world {world!r} is unknown; choose one of {", ".join(WORLDS)}')
    if min(train, val) < 1 or min(size) < LEAST_SIDE:
        raise ValueError(
            f'train={train}, val={val}, size={size}: give at least one image each, with sides of {LEAST_SIDE} or more'
        )
    folder = Path(root) / FOLDERS[world]
    recipe = json.dumps(dict(train=train, val=val, size=size, seed=seed, version=VERSION))
    if _recipe_of(folder) == recipe:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f'.{folder.name}.miniature-lock'):  # the system lets go of it whatever happens
        found = _recipe_of(folder)
        if found is None and folder.exists():
            raise FileExistsError(f'{str(folder)!r} exists and is not a miniature world; give another root')
        if found != recipe:
            draft = _absent(folder.parent / f'.{folder.name}.miniature-draft')
            draft.mkdir()
            writers = dict(
                coco=_write_coco, ade20k=_write_ade20k, cityscapes=_write_cityscapes, imagenet=_write_imagenet
            )
            write = writers[world]
            write(draft, 'train', scenes(train, size, (seed, 0)))
            write(draft, 'val', scenes(val, size, (seed, 1)))
            (draft / STAMP).write_text(recipe)
            _put_in_place(draft, folder)
    return folder


def _recipe_of(folder: Path) -> str | None:
    """What the world in this folder was made from, if there is one."""
    try:
        return (folder / STAMP).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _absent(folder: Path) -> Path:
    """A folder of ours that is to be made; what a killed process left of it is removed."""
    if folder.exists():
        shutil.rmtree(folder)
    return folder


def _put_in_place(draft: Path, folder: Path) -> None:
    """The whole world appears at once; an outdated one goes."""
    outdated = _absent(folder.parent / f'.{folder.name}.miniature-outdated')  # Windows renames to no folder that exists
    if folder.exists():
        folder.rename(outdated)
    draft.rename(folder)
    _absent(outdated)


def _write_image(path: Path, image: np.ndarray) -> None:
    path.write_bytes(cv2.imencode(path.suffix, image)[1])  # a name that is not UTF-8 ends the process in OpenCV


def _write_coco(folder: Path, split: str, drawn: Iterator[Scene]) -> None:
    """``train2017/*.jpg`` and ``annotations/instances_train2017.json`` with all 80 categories."""
    from mmdet.datasets import CocoDataset

    names = CocoDataset.METAINFO['classes']
    images, annotations = [], []
    pictures = folder / f'{split}2017'
    pictures.mkdir(parents=True)
    for number, scene in enumerate(drawn, start=1):
        height, width = scene.image.shape[:2]
        name = f'{number:012d}.jpg'
        _write_image(pictures / name, scene.image)
        images.append(dict(id=number, file_name=name, height=height, width=width))
        for kind, mask in zip(scene.kinds, scene.masks, strict=True):
            polygons, box = _outline(mask)
            annotations.append(
                dict(
                    id=len(annotations) + 1,
                    image_id=number,
                    category_id=names.index(KINDS[kind].coco) + 1,
                    bbox=box,
                    area=int(mask.sum()),
                    segmentation=polygons,
                    iscrowd=0,
                )
            )
    categories = [dict(id=i, name=name) for i, name in enumerate(names, start=1)]
    target = folder / 'annotations' / f'instances_{split}2017.json'
    target.parent.mkdir(exist_ok=True)
    about = dict(description='miniature world', version=str(VERSION))
    target.write_text(json.dumps(dict(info=about, images=images, annotations=annotations, categories=categories)))


def _outline(mask: np.ndarray) -> tuple[list[list[float]], list[float]]:
    """Polygons of the visible parts, and the box (x, y, width, height) about all of them."""
    # Contours run through the centres of pixels. Those of the enlarged mask, a quarter pixel inside
    # of the true outline, give the mask back when COCO's tools fill them.
    enlarged = mask.astype(np.uint8).repeat(2, 0).repeat(2, 1)
    contours, _ = cv2.findContours(enlarged, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    polygons = [((contour.reshape(-1) + 0.5) / 2).tolist() for contour in contours]
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    x, y = float(columns[0]), float(rows[0])
    return polygons, [x, y, float(columns[-1] + 1 - x), float(rows[-1] + 1 - y)]


def _label_map(scene: Scene, names: tuple[str, ...], world: str) -> np.ndarray:
    """(H, W) indices into ``names``; a line between sky and ground is nobody's."""
    sky, ground = (names.index(name) for name in STUFF[world])
    height, width = scene.image.shape[:2]
    labels = np.full((height, width), ground, np.uint8)
    labels[: scene.horizon] = sky
    labels[scene.horizon] = UNLABELLED
    for kind, mask in zip(scene.kinds, scene.masks, strict=True):
        labels[mask] = names.index(getattr(KINDS[kind], world))
    return labels


def _write_ade20k(folder: Path, split: str, drawn: Iterator[Scene]) -> None:
    """``images/training/*.jpg`` and ``annotations/training/*.png`` whose 0 means unlabelled."""
    from mmseg.datasets import ADE20KDataset

    part = dict(train='training', val='validation')[split]
    for kind in ('images', 'annotations'):
        (folder / kind / part).mkdir(parents=True)
    for number, scene in enumerate(drawn, start=1):
        labels = _label_map(scene, ADE20KDataset.METAINFO['classes'], 'ade20k') + np.uint8(1)  # 255 becomes 0
        name = f'ADE_{split}_{number:08d}'
        _write_image(folder / 'images' / part / f'{name}.jpg', scene.image)
        _write_image(folder / 'annotations' / part / f'{name}.png', labels)


def _write_cityscapes(folder: Path, split: str, drawn: Iterator[Scene]) -> None:
    """``leftImg8bit/train/CITY/*_leftImg8bit.png`` and ``gtFine/train/CITY/*_gtFine_labelTrainIds.png``."""
    from mmseg.datasets import CityscapesDataset

    city = 'miniature'
    for kind in ('leftImg8bit', 'gtFine'):
        (folder / kind / split / city).mkdir(parents=True)
    for number, scene in enumerate(drawn):
        labels = _label_map(scene, CityscapesDataset.METAINFO['classes'], 'cityscapes')
        name = f'{city}_{number:06d}_000019'
        _write_image(folder / 'leftImg8bit' / split / city / f'{name}_leftImg8bit.png', scene.image)
        _write_image(folder / 'gtFine' / split / city / f'{name}_gtFine_labelTrainIds.png', labels)


def _write_imagenet(folder: Path, split: str, drawn: Iterator[Scene]) -> None:
    """``train/CLASS/*.jpg``: square pictures of the scenes' objects, except for those that others hide."""
    for kind in KINDS:
        (folder / split / _class_folder(kind)).mkdir(parents=True)
    for number, scene in enumerate(drawn):
        height, width = scene.image.shape[:2]
        for index, (kind, mask) in enumerate(zip(scene.kinds, scene.masks, strict=True)):
            _, (x, y, across, down) = _outline(mask)
            side = min(round(MARGIN * max(across, down)), height, width)
            left = int(np.clip(x + across / 2 - side / 2, 0, width - side))
            top = int(np.clip(y + down / 2 - side / 2, 0, height - side))
            shown = mask[top : top + side, left : left + side]
            if shown[side // 2, side // 2] and shown.mean() >= LEAST_SHARE:
                picture = scene.image[top : top + side, left : left + side]
                _write_image(folder / split / _class_folder(KINDS[kind]) / f'{number:06d}_{index}.jpg', picture)


def _class_folder(kind: Kind) -> str:
    return kind.coco.replace(' ', '_')
