"""The files of a data set, walked once; nothing in it is changed."""

import json
import os
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from PIL import Image

from mmsoft.datasets.class_folders import SUFFIXES
from mmsoft.datasets.reading import check_file, check_sides

from .found import PARTS, Faults, Found, OwnDataError, Place, folder_part, numbers, tally

_NOT_DATA = ('__MACOSX', 'work_dirs')
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap the sides
_ORIENTATION = 0x0112
# Files of this name, whatever their suffix, name classes.
_NAME_FILES = (
    *('classes', 'labels', 'names', 'obj', 'labelmap', 'colormap', 'label_names', 'class_names', 'label_colors'),
    *('class_dict', 'predefined_classes', '_darknet', '_classes'),
)


class Tree:
    """Files below a folder.

    Args:
        root: The folder.
        faults: Takes what is wrong.
        skip: Folders in it that are not looked into, such as the work directory.
    """

    def __init__(self, root: Path, faults: Faults, skip: Collection[Path] = ()) -> None:
        self.root, self.faults, self.sizes = root, faults, {}
        self.files = sorted(self._walk({path.resolve() for path in skip}))
        self.pictures = [name for name in self.files if name.lower().endswith(SUFFIXES)]

    def _walk(self, skip: Collection[Path]) -> list[str]:
        names, been = [], set()
        for where, folders, files in os.walk(self.root, followlinks=True):
            real = Path(where).resolve()
            if real in been or real in skip:  # links may lead in a circle
                folders.clear()
                continue
            been.add(real)
            folders[:] = [name for name in folders if not name.startswith('.') and name not in _NOT_DATA]
            below = Path(where).relative_to(self.root)
            names += [(below / name).as_posix() for name in files if not name.startswith('.')]
        return [name for name in names if self._is_utf8(name)]

    def _is_utf8(self, name: str) -> bool:
        try:
            name.encode()
        except UnicodeEncodeError:
            if name.lower().endswith(SUFFIXES):
                self.faults.add(self.root / name, 'the name is not UTF-8, which annotations are written in: rename it')
            return False
        return True

    def with_suffix(self, *suffixes: str) -> list[str]:
        return [name for name in self.files if name.lower().endswith(suffixes)]

    @cached_property
    def by_stem(self) -> dict[str, list[str]]:
        """Name without folders and suffix -> pictures."""
        found = defaultdict(list)
        for name in self.pictures:
            found[_plain(PurePosixPath(name).stem)].append(name)
        return found

    def locate(self, wanted: str, near: str = '', part: str | None = None) -> str | None:
        """The picture that annotations in the file ``near`` call so: its folders may be those of another machine."""
        wanted = wanted.replace('\\', '/')
        candidates = self.by_stem.get(_plain(PurePosixPath(wanted).stem), [])
        suffix = PurePosixPath(wanted).suffix.lower()
        # of a name without a suffix, or of one that a tool has changed, any picture will do
        same = [name for name in candidates if PurePosixPath(name).suffix.lower() == suffix] or candidates
        ranked = sorted(same, key=lambda name: _likeness(name, wanted, near, part), reverse=True)
        if len(ranked) > 1 and _likeness(ranked[0], wanted, near, part) == _likeness(ranked[1], wanted, near, part):
            raise ValueError(f'{wanted!r} may be {ranked[0]!r} or {ranked[1]!r}: give its folder as well')
        return ranked[0] if ranked else None

    def locate_for(self, place: Place, choices: Sequence[str], name: str, told: str) -> str | None:
        """The picture of the annotation file ``name``, by the first choice that names one; else None, and a fault."""
        try:
            path = next(filter(None, (self.locate(choice, name) for choice in choices)), None)
        except ValueError as error:
            self.faults.add(place, str(error))
            return None
        if path is None:
            self.faults.add(place, f'there is no picture {told or PurePosixPath(name).stem!r} for it')
        return path

    def size(self, name: str) -> tuple[int, int] | None:
        """Width and height as it is shown; None, and a fault, if it cannot be read."""
        if name not in self.sizes:
            try:
                check_file(self.root / name)
                with Image.open(self.root / name) as picture:
                    turned = picture.getexif().get(_ORIENTATION) in _TURNED
                    size = picture.size[::-1] if turned else picture.size
                check_sides(*size)
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                self.faults.add(self.root / name, f'is no picture that can be read ({error}): mend or remove it')
                size = None
            self.sizes[name] = size
        return self.sizes[name]

    def check_size(self, name: str, told: tuple[Any, Any], place: Place) -> None:
        """A fault if annotations tell another size than the picture has: they are of another version of it."""
        size = self.size(name)
        if size is None or not all(told):
            return
        try:
            width, height = map(int, numbers(told))
        except ValueError as error:
            self.faults.add(place, f'its width and height: {error}')
            return
        if (width, height) != size:
            turned = '; it is perhaps turned by its EXIF' if (height, width) == size else ''
            self.faults.add(
                place,
                f'{name!r} is annotated at {width} x {height} pixels, but has {size[0]} x {size[1]}{turned}: '
                'use the picture that was annotated',
            )

    def text(self, name: str) -> str:
        try:
            check_file(self.root / name)
            return (self.root / name).read_text(encoding='utf-8-sig')
        except UnicodeDecodeError as error:
            place = self.root / name
            self.faults.add(place, f'is no text in UTF-8, save it as such: byte {error.start}: {error.reason}')
        except ValueError as error:
            self.faults.add(self.root / name, str(error))
        return ''

    @cached_property
    def json(self) -> dict[str, Any]:
        """Every JSON file of an object: name -> content."""
        contents = {}
        for name in self.with_suffix('.json'):
            text = self.text(name)
            try:
                contents[name] = json.loads(text) if text else None
            except (ValueError, RecursionError) as error:
                line = getattr(error, 'lineno', None)
                self.faults.add(Place(self.root / name, line), f'is no whole JSON: {getattr(error, "msg", error)}')
        return {name: content for name, content in contents.items() if isinstance(content, dict)}

    @cached_property
    def yaml(self) -> dict[str, Any]:
        """Every YAML file that names classes: name -> content."""
        contents = {}
        for name in self.with_suffix('.yaml', '.yml'):
            try:
                contents[name] = yaml.safe_load(self.text(name))
            except yaml.YAMLError as error:
                mark = getattr(error, 'problem_mark', None)
                problem = getattr(error, 'problem', None) or 'it cannot be read'
                self.faults.add(Place(self.root / name, mark and mark.line + 1), f'is no YAML: {problem}')
        return {name: content for name, content in contents.items() if isinstance(content, dict) and 'names' in content}

    def class_names(self) -> tuple[str, list[str]] | None:
        """A file of classes and its lines, without empty ones and remarks; the names of a YAML file go first."""
        for name, content in self.yaml.items():
            names = content['names']
            if isinstance(names, dict) and set(names) == set(range(len(names))):
                names = [names[number] for number in range(len(names))]
            if not isinstance(names, list):
                self.faults.add(self.root / name, 'names must be a list, or a name for each number from 0 on')
                continue
            return name, [str(entry).strip() for entry in names]
        for name in self.with_suffix('.txt', '.names', '.labels', '.csv'):
            if PurePosixPath(name).stem.lower() in _NAME_FILES:
                lines = [line.strip() for line in self.text(name).splitlines()]
                return name, [line for line in lines if line and not line.startswith('#')]
        return None


def share_out(tree: Tree, found: Found, kind: str) -> None:
    """VOC's ImageSets/<kind>/train.txt and val.txt, if they are there, say what is for training."""
    parts = {}
    for part in PARTS:
        for name in tree.with_suffix(f'imagesets/{kind}/{part}.txt'):
            parts |= {line.split()[0]: part for line in tree.text(name).splitlines() if line.strip()}
    if not parts:
        return
    for picture in found.pictures:
        picture.part = parts.get(PurePosixPath(picture.path).stem)
    left = [picture.path for picture in found.pictures if picture.part is None]
    if left:
        found.remarks.append(tally('pictures in no list of ImageSets', left, 'not used'))
        found.pictures = [picture for picture in found.pictures if picture.part]


def open_root(folder: str | Path) -> Path:
    root = Path(folder).expanduser()
    if not root.is_dir():
        what = 'is a file' if root.is_file() else 'does not exist'
        raise OwnDataError(
            f'--data {str(folder)!r} {what} (working directory {str(Path.cwd())!r}): name the folder that holds your '
            'pictures and annotations'
        )
    return root.resolve()


def _plain(stem: str) -> str:
    """Without what macOS decomposes."""
    return unicodedata.normalize('NFC', stem)


def _likeness(name: str, wanted: str, near: str, part: str | None) -> tuple[int, bool, int]:
    """How many folders two paths share at their end, whether the part is told by its folder, how near it is."""
    own, other, beside = (PurePosixPath(path).parts[:-1] for path in (name, wanted, near))
    return _common(own[::-1], other[::-1]), part is not None and folder_part(name) == part, _common(own, beside)


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many entries are the same from the beginning on."""
    return next(
        (n for n, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
