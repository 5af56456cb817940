"""LabelMe's JSON, a file a picture."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from .coco import box_of
from .found import Found, Object, Picture, Place, folder_part, numbers, tally
from .tree import Tree

CIRCLE = 32  # corners
NOT_CLASSES = ('__ignore__', '_background_')


def read_labelme(tree: Tree) -> Found | None:
    files = {name: content for name, content in tree.json.items() if isinstance(content.get('shapes'), list)}
    if not files:
        return None
    found, left = Found('LabelMe', tree.root, [], []), Counter()
    for name, content in files.items():
        picture = _picture(tree, name, content)
        if picture is not None:
            picture.objects = _objects(tree, name, content['shapes'], left)
            found.pictures.append(picture)
    labels, listed = {entry.label for picture in found.pictures for entry in picture.objects}, tree.class_names()
    names = [name for name in listed[1] if name not in NOT_CLASSES] if listed else []
    found.classes = names if labels <= set(names) else sorted(labels)
    found.remarks += [
        f'shapes of the kind {kind!r}, which has no area: {number}: not used' for kind, number in left.items()
    ]
    spare = sorted({*tree.pictures} - {picture.path for picture in found.pictures})
    if spare:
        found.remarks.append(tally('pictures without a JSON file', spare, 'not used'))
    return found


def _picture(tree: Tree, name: str, content: Mapping[str, Any]) -> Picture | None:
    place, told = Place(tree.root / name), content.get('imagePath') or ''
    path = tree.locate_for(place, (str(told), PurePosixPath(name).stem), name, told)
    if path is None:
        return None
    size = tree.size(path)
    tree.check_size(path, (content.get('imageWidth'), content.get('imageHeight')), place)
    return size and Picture(path, size, folder_part(path) or folder_part(name))


def _objects(tree: Tree, name: str, shapes: Sequence[Any], left: Counter) -> list[Object]:
    """One for each shape, or for shapes of one group."""
    groups = {}
    for index, shape in enumerate(shapes):
        place = Place(tree.root / name, entry=('shapes', index))
        try:
            label, kind = str(shape['label']).strip(), shape.get('shape_type') or 'polygon'
            points = [tuple(numbers(point)) for point in shape['points']]
            polygon = _polygon(kind, points)
        except (KeyError, TypeError, AttributeError):
            tree.faults.add(place, 'a shape needs a label and points')
            continue
        except ValueError as error:
            tree.faults.add(place, str(error))
            continue
        if label in NOT_CLASSES:
            continue
        if polygon is None:
            left[kind] += 1
            continue
        group = shape.get('group_id')
        known = groups.setdefault((label, index if group is None else f'group {group}'), (place, []))
        known[1].append(polygon)
    return [Object(label, tuple(box_of(mask)), mask, False, place) for (label, _), (place, mask) in groups.items()]


def _polygon(kind: str, points: list[tuple[float, ...]]) -> list[float] | None:
    """The outline x, y, x, y, ...; None for a shape without area."""
    if any(len(point) != 2 for point in points):
        raise ValueError(f'a point is x and y; got {points[:3]}')
    if kind == 'rectangle' and len(points) in (2, 4):
        xs, ys = zip(*points, strict=True)
        points = [(min(xs), min(ys)), (max(xs), min(ys)), (max(xs), max(ys)), (min(xs), max(ys))]
    elif kind == 'circle' and len(points) == 2:
        (x, y), radius = points[0], math.dist(*points)
        angles = [2 * math.pi * step / CIRCLE for step in range(CIRCLE)]
        points = [(x + radius * math.cos(angle), y + radius * math.sin(angle)) for angle in angles]
    elif kind != 'polygon':
        return None
    if len(points) < 3:
        raise ValueError(f'a {kind} has at least three points; got {len(points)}')
    return [value for point in points for value in point]
