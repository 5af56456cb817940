"""YOLO's text files, a line an object: boxes ``class x y width height`` or polygons ``class x y x y x y ...``."""

from pathlib import PurePosixPath
from typing import Any

from .coco import box_of
from .found import Found, Object, Picture, Place, folder_part, numbers, tally
from .tree import Tree

FARTHEST = 2.0  # shares of a picture; what is beyond is given in pixels


def read_yolo(tree: Tree) -> Found | None:
    texts = set(tree.with_suffix('.txt'))
    labels = {name: text for name in tree.pictures if (text := _labels_of(name, texts))}
    listed = tree.class_names()
    if not any(_is_yolo(tree.text(text)) for text in labels.values()):
        return None
    names = listed[1] if listed else []
    parts = _parts(tree)
    found = Found('YOLO', tree.root, [], names)
    highest = -1
    for path in tree.pictures:
        size = tree.size(path)
        if size is None:
            continue
        picture = Picture(path, size, parts.get(path) or folder_part(path))
        found.pictures.append(picture)
        for line, words in _lines(tree, labels.get(path)):
            place = Place(tree.root / labels[path], line)
            try:
                number = _number(words[0], names, listed[0] if listed else None)
                highest = max(highest, number)
                picture.objects.append(_object(number, words[1:], size, place))
            except ValueError as error:
                tree.faults.add(place, str(error))
    if not names:
        found.classes = [f'class_{number}' for number in range(highest + 1)]
        found.remarks.append('no data.yaml and no classes.txt names the classes: they are called class_0, class_1, ...')
    for picture in found.pictures:
        for entry in picture.objects:
            entry.label = found.classes[int(entry.label)]
    bare = [picture.path for picture in found.pictures if picture.path not in labels]
    if bare:
        found.remarks.append(tally('pictures without a text file', bare, 'they count as empty'))
    return found


def _labels_of(picture: str, texts: set[str]) -> str | None:
    """Its text file: beside it, or in ``labels`` where it is in ``images``."""
    path = PurePosixPath(picture).with_suffix('.txt')
    parts = list(path.parts)
    swapped = ['labels' if part.lower() == 'images' else part for part in parts]
    choices = [path.as_posix(), '/'.join(swapped), '/'.join(['labels', *parts[-1:]])]
    return next((choice for choice in choices if choice in texts), None)


def _is_yolo(text: str) -> bool:
    """Whether its first line is of numbers alone, five or more."""
    words = next((line.split() for line in text.splitlines() if line.strip()), [])
    try:
        return len(words) > 4 and bool([float(word) for word in words])
    except ValueError:
        return False


def _lines(tree: Tree, name: str | None) -> list[tuple[int, list[str]]]:
    lines = tree.text(name).splitlines() if name else []
    return [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]


def _number(word: str, names: list[str], source: str | None) -> int:
    if not word.isdigit():
        raise ValueError(f'a line begins with the number of a class; got {word!r}')
    if names and int(word) >= len(names):
        raise ValueError(f'the class {word} is none of the {len(names)} in {source!r}, which count from 0')
    return int(word)


def _object(number: int, words: list[str], size: tuple[int, int], place: Place) -> Object:
    values = list(numbers(words))
    if len(values) != 4 and (len(values) < 6 or len(values) % 2):
        raise ValueError(
            f'expected "class x y width height", or a class and at least three points x y; got {len(words) + 1} numbers'
        )
    if max(map(abs, values)) > FARTHEST:
        raise ValueError(f'coordinates are shares of the picture, from 0 to 1; got {max(values, key=abs):g}')
    width, height = size
    if len(values) == 4:
        x, y, w, h = values
        box = ((x - w / 2) * width, (y - h / 2) * height, w * width, h * height)
        return Object(str(number), box, None, False, place)
    polygon = [value * size[index % 2] for index, value in enumerate(values)]
    return Object(str(number), tuple(box_of([polygon])), [polygon], False, place)


def _parts(tree: Tree) -> dict[str, str]:
    """What the YAML file says of training, validation and testing: picture -> part."""
    found = {}
    for name, content in tree.yaml.items():
        for part in ('train', 'val', 'test'):
            for entry in _as_list(content.get(part)):
                for path in _named(tree, str(entry).replace('\\', '/'), PurePosixPath(name).parent):
                    found[path] = part
    return found


def _named(tree: Tree, entry: str, beside: PurePosixPath) -> list[str]:
    """Pictures of a folder or a list of files, by the end of its path: its beginning is of another machine."""
    parts = [part for part in PurePosixPath(entry).parts if part not in ('..', '.', '/')]
    for start in range(len(parts)):
        place = (beside / '/'.join(parts[start:])).as_posix()
        if place in tree.files:
            return list(
                filter(None, (tree.locate(line.strip(), place) for line in tree.text(place).splitlines() if line))
            )
        inside = [path for path in tree.pictures if path.startswith(f'{place}/')]
        if inside:
            return inside
    return []


def _as_list(value: Any) -> list:
    return value if isinstance(value, list) else [value] if value else []
