"""Pictures beside label maps: grey ones of class numbers, or coloured ones."""

import re
from collections import defaultdict
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image

from .found import Found, Picture, folder_part, tally
from .tree import Tree, share_out

UNLABELLED = 255
MOST_VALUES = 255  # which a map of 8 bits can tell apart from what is not labelled
_MAP_SUFFIXES = ('.png', '.tif', '.tiff', '.bmp')
_MAP_FOLDER = re.compile(
    r'(^|[_\W]|train|val|test)(annots?|labels?|masks?|annotations?|ann|anns|gt|gtfine|segmentations?|segmentationclass|seg|segs|targets?)'
    r'($|[_\W]|\d)',
    re.IGNORECASE,
)
_MAP_ENDING = re.compile(
    r'[_.\- ](labels?|masks?|segmentation|seg|gt|annotation|labelids|labeltrainids|target|l)$', re.IGNORECASE
)
_PICTURE_WORDS = ('images', 'imgs', 'image', 'img', 'img_dir', 'jpegimages', 'pictures', 'photos', 'leftimg8bit')
_PICTURE_ENDING = re.compile(r'[_.\- ](img|image|leftimg8bit|sat|rgb)$', re.IGNORECASE)


def read_label_maps(tree: Tree) -> Found | None:
    pairs, spare_maps, spare_pictures = _pairs(tree)
    if not pairs:
        return None
    found = Found('label maps', tree.root, [], [])
    for spare, what, lacking in ((spare_maps, 'label maps', 'picture'), (spare_pictures, 'pictures', 'label map')):
        if spare:
            found.remarks.append(tally(f'{what} without a {lacking}', spare, 'not used'))
    for path, name in pairs.items():
        size, map_size = tree.size(path), tree.size(name)
        if size is None or map_size is None:
            continue
        if size != map_size:
            tree.faults.add(
                tree.root / name,
                f'a label map is as large as its picture: it has {map_size[0]} x {map_size[1]} pixels, '
                f'{path!r} has {size[0]} x {size[1]}',
            )
            continue
        found.pictures.append(Picture(path, size, folder_part(path) or folder_part(name), label_map=tree.root / name))
    share_out(tree, found, 'segmentation')
    _name_classes(tree, found)
    return found


def _pairs(tree: Tree) -> tuple[dict[str, str], list[str], list[str]]:
    """Picture -> its label map; maps and pictures that are left."""
    stems = defaultdict(list)
    for name in tree.pictures:
        stems[PurePosixPath(name).with_suffix('').as_posix()].append(name)
    beside = {name for group in stems.values() if len(group) > 1 for name in group}
    maps = [name for name in tree.pictures if _is_map(name, name in beside)]
    pictures, pairs = sorted(set(tree.pictures) - set(maps)), {}
    whole, last = {_key(name, False): name for name in maps}, defaultdict(list)
    for name in maps:
        last[_key(name, False)[-1]].append(name)
    for name in pictures:
        key = _key(name, True)
        same = last.get(key[-1], [])
        found = whole.get(key) or (same[0] if len(same) == 1 else None)
        if found:
            pairs[name] = found
    used = set(pairs.values())
    return pairs, [name for name in maps if name not in used], [name for name in pictures if name not in pairs]


def _is_map(name: str, has_double: bool) -> bool:
    """By its folder, by its ending, or because a picture of the same name stands beside it."""
    path = PurePosixPath(name)
    if path.suffix.lower() not in _MAP_SUFFIXES:
        return False
    own_folder = any(_MAP_FOLDER.search(part) for part in path.parts[:-1])
    return own_folder or bool(_MAP_ENDING.search(path.stem)) or (has_double and path.suffix.lower() == '.png')


def _key(name: str, is_picture: bool) -> tuple[str, ...]:
    """What a picture and its map have in common: folders and name without the words that tell them apart."""
    path = PurePosixPath(name)
    words = [part for part in path.parts[:-1] if part.lower() not in _PICTURE_WORDS and not _MAP_FOLDER.search(part)]
    stem = (_PICTURE_ENDING if is_picture else _MAP_ENDING).sub('', path.stem)
    if not is_picture:
        stem = re.sub(r'_gtFine$', '', stem)
    return (*words, stem)


def read_map(path: Path, by_colour: bool) -> np.ndarray:
    """The pixels (H, W) of a label map: numbers, or colours as R * 65536 + G * 256 + B."""
    with Image.open(path) as picture:
        if not by_colour and not _has_bands(picture):
            return np.asarray(picture).astype(np.int64)
        red, green, blue = np.moveaxis(np.asarray(picture.convert('RGB')).astype(np.int64), 2, 0)
    return red << 16 | green << 8 | blue if by_colour else red


def _has_bands(picture: Image.Image) -> bool:
    return not (picture.mode in ('P', 'L', '1') or picture.mode.startswith('I'))


def _is_coloured(path: Path) -> bool:
    """Whether it is anything else than shades of grey or indices."""
    with Image.open(path) as picture:
        if not _has_bands(picture):
            return False
        bands = np.asarray(picture.convert('RGB'))
    return bool((bands != bands[..., :1]).any())


def _name_classes(tree: Tree, found: Found) -> None:
    """Classes, their colours, and which values stand for them."""
    source, lines = tree.class_names() or ('', [])
    rows = _rows(lines)
    maps = [picture.label_map for picture in found.pictures]
    found.by_colour = any(colour for _, _, colour in rows) or any(map(_is_coloured, maps))
    used = {path: set(map(int, np.unique(read_map(path, found.by_colour)))) for path in maps}
    for path, values in used.items():
        if len(values) > MOST_VALUES:
            what = 'colours' if found.by_colour else 'values'
            tree.faults.add(
                path, f'has {len(values)} {what}, but each stands for a class: save masks as PNG, without smoothing'
            )
    every = set().union(*used.values())
    if tree.faults.sentences:
        return None
    if len(every) > MOST_VALUES:
        return tree.faults.add(found.root, f'its label maps have {len(every)} values, more than there can be classes')
    names = _by_colour(found, every, rows) if found.by_colour else _by_number(found, every, rows, source)
    found.classes = list(dict.fromkeys(names.values()))
    found.values = {value: found.classes.index(name) for value, name in names.items()}
    for picture in found.pictures:
        picture.labels = {names[value] for value in used[picture.label_map] if value in names}
    allowed = names.keys() if found.by_colour else {*names, 0, UNLABELLED}
    for path, values in used.items():
        strange = sorted(values - allowed)
        if strange:
            what = f'colour #{strange[0]:06x}' if found.by_colour else f'value {strange[0]}'
            tree.faults.add(path, f'has the {what}, for which {source!r} has no name: add it there')
    return None


Row = tuple[str, int | None, tuple[int, int, int] | None]


def _rows(lines: list[str]) -> list[Row]:
    """Name, number and colour of each line: ``name``, ``3,name``, ``name,255,0,0``, ``64 128 64 name``."""
    rows = []
    for line in lines:
        plain = re.sub(r':[^:,]*:[^:]*$', '', line)  # CVAT's parts and actions
        words = [word for word in re.split(r'\s*[,;:\t]\s*', plain) if word]
        if match := re.match(r'(\d+)\s+(\d+)\s+(\d+)\s+(.+)', line):
            words = [*match.groups()]
        shades = [int(word) for word in words if word.isdigit()]
        name = next((word for word in words if not word.isdigit()), words[0] if words else '')
        if len(shades) >= 3:
            rows.append((name, None, (shades[0], shades[1], shades[2])))
        elif len(words) == 1 or shades:  # else a headline
            rows.append((name, shades[0] if len(words) > 1 else None, None))
    return rows


def _by_colour(found: Found, every: set[int], rows: list[Row]) -> dict[int, str]:
    """Packed colour -> name."""
    names = {colour[0] << 16 | colour[1] << 8 | colour[2]: name for name, _, colour in rows if colour}
    if not names:
        names = {value: f'colour_{value:06x}' for value in sorted(every)}
        found.remarks.append(
            f'no file names the {len(names)} colours: each is a class called by its colour; put a class_dict.csv '
            'with lines "name,red,green,blue" there'
        )
    first = {name: value for value, name in reversed(names.items())}
    found.palette = [(first[n] >> 16, first[n] >> 8 & 255, first[n] & 255) for n in dict.fromkeys(names.values())]
    return names


def _by_number(found: Found, every: set[int], rows: list[Row], source: str) -> dict[int, str]:
    """Value -> name."""
    labels = [0, UNLABELLED] if every == {0, UNLABELLED} else sorted(every - {UNLABELLED})
    names = [name for name, _, _ in rows]
    if UNLABELLED in every and UNLABELLED not in labels:
        found.remarks.append('pixels of the value 255 count as not labelled')
    if not names:
        found.remarks.append('no file names the classes: put a classes.txt there, a name a line in the order of values')
        binary = labels == [0, UNLABELLED]
        return dict(zip(labels, ['background', 'object'], strict=True)) if binary else {v: f'class_{v}' for v in labels}
    if all(number is not None for _, number, _ in rows):
        return {number: name for name, number, _ in rows if number is not None}
    if labels == [0, UNLABELLED] and len(names) == 2:
        return dict(zip(labels, names, strict=True))
    if max(labels, default=0) == len(names):
        found.remarks.append(
            f'{source!r} has {len(names)} names and the highest value is {len(names)}: its first name is of the '
            'value 1, and pixels of the value 0 count as not labelled'
        )
        return dict(enumerate(names, 1))
    return dict(enumerate(names))
