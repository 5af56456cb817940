"""Pictures of one class each: in a folder a class, or listed in a CSV file."""

import csv
from collections.abc import Sequence
from pathlib import PurePosixPath

from mmsoft.datasets.class_folders import SUFFIXES

from .found import Found, Picture, Place, folder_part, part_of, tally
from .tree import Tree

_CLASS_COLUMNS = ('label', 'class', 'category', 'target', 'class_name', 'classname', 'label_name', 'species', 'y')
_PART_COLUMNS = ('split', 'part', 'set', 'subset', 'fold')


def read_class_list(tree: Tree) -> Found | None:
    """A CSV file whose rows are a picture and its class."""
    found, seen = Found('CSV of classes', tree.root, [], []), {}
    parts = {name: part_of(PurePosixPath(name).name) for name in tree.with_suffix('.csv', '.tsv')}
    for name, part in parts.items():
        rows = _rows(tree.text(name), '\t' if name.lower().endswith('.tsv') else ',')
        columns = _columns(tree, rows)
        if columns is None:
            continue
        for line, row in rows:
            place = Place(tree.root / name, line)
            if line == 1 and not _names_picture(tree, row[columns[0]]):
                continue  # the headline
            picture = _picture(tree, name, row, columns, part, place)
            if picture is None:
                continue
            if picture.path in seen:
                tree.faults.add(place, f'{picture.path!r} is listed before, in line {seen[picture.path]}')
            seen[picture.path] = line
            found.pictures.append(picture)
    if not seen:
        return None
    found.classes = _in_order(set().union(*(picture.labels for picture in found.pictures)))
    spare = [name for name in tree.pictures if name not in seen]
    if spare:
        found.remarks.append(tally('pictures in no list', spare, 'not used'))
    return found


def _rows(text: str, comma: str) -> list[tuple[int, list[str]]]:
    """Lines with their numbers; a quoted line break counts where it ends."""
    if comma not in text and ';' in text:
        comma = ';'
    reader = csv.reader(text.splitlines(), delimiter=comma)
    return [(reader.line_num, [word.strip() for word in row]) for row in reader if any(row)]


def _names_picture(tree: Tree, word: str) -> bool:
    """A name with its suffix, or without."""
    return word.lower().endswith(SUFFIXES) or PurePosixPath(word.replace('\\', '/')).name in tree.by_stem


def _columns(tree: Tree, rows: Sequence[tuple[int, list[str]]]) -> tuple[int, int, int | None] | None:
    """Which column has the picture, its class, and perhaps the part; None for a CSV of something else."""
    first = [row for _, row in rows[1:6]]
    if not first or len(first[0]) < 2:
        return None
    width = range(min(map(len, first)))
    picture = next((index for index in width if all(_names_picture(tree, row[index]) for row in first)), None)
    if picture is None:
        return None
    heads = [word.lower() for word in rows[0][1]]
    label = next((heads.index(name) for name in _CLASS_COLUMNS if name in heads), None)
    part = next((heads.index(name) for name in _PART_COLUMNS if name in heads), None)
    if label is None:
        label = int(picture == 0)
    return picture, label, part


def _picture(
    tree: Tree, name: str, row: list[str], columns: tuple[int, int, int | None], part: str | None, place: Place
) -> Picture | None:
    wanted, label, told = ('' if c is None or c >= len(row) else row[c] for c in columns)
    if not wanted or not label:
        return tree.faults.add(place, f'expected a picture and its class; got {row}')
    try:
        path = tree.locate(wanted, name, part)
    except ValueError as error:
        return tree.faults.add(place, str(error))
    if path is None:
        return tree.faults.add(place, f'there is no picture {wanted!r} below {str(tree.root)!r}')
    size = tree.size(path)
    return size and Picture(path, size, part_of(told) or part or folder_part(path), labels={label})


def read_class_folders(tree: Tree) -> Found | None:
    """Folders that are called as their classes, perhaps below ``train`` and ``val``."""
    folders = {name: list(PurePosixPath(name).parts[:-1]) for name in tree.pictures}
    folders = {name: [part for part in parts if part_of(part) is None] for name, parts in folders.items()}
    if not any(folders.values()):
        return None
    while all(folders.values()) and len({parts[0] for parts in folders.values()}) == 1:
        for parts in folders.values():
            parts.pop(0)  # a folder around all
    bare = [name for name, parts in folders.items() if not parts]
    if len(bare) == len(folders):
        lists = ''.join(f'; {name!r} is no list of pictures and classes' for name in tree.with_suffix('.csv', '.tsv'))
        tree.faults.add(tree.root, f'all pictures lie in one folder: a classifier needs one for each class{lists}')
    elif bare:
        tree.faults.add(tree.root / bare[0], f'lies in no folder of a class (one of {len(bare)}): move it into one')
    if bare:
        return Found('class folders', tree.root, [], [])
    found = Found('class folders', tree.root, [], _in_order({parts[0] for parts in folders.values()}))
    for name, parts in folders.items():
        size = tree.size(name)
        if size:
            found.pictures.append(Picture(name, size, folder_part(name), labels={parts[0]}))
    return found


def _in_order(names: set[str]) -> list[str]:
    """Numbers by size, words as ABC."""
    return sorted(names, key=lambda name: (0, int(name), name) if name.isdigit() else (1, 0, name))
