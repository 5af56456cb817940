"""What a folder of somebody's data holds, whatever format it is in, and what is wrong with it."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmsoft.datasets.layout import DataError

PARTS = ('train', 'val', 'test')
MOST_TOLD = 12  # faults of one set
_WORDS = {
    **dict.fromkeys(('train', 'training', 'trn'), 'train'),
    **dict.fromkeys(('val', 'valid', 'validation', 'dev'), 'val'),
    **dict.fromkeys(('test', 'testing'), 'test'),
}
_PART_WORD = re.compile(rf'(?<![a-z])({"|".join(_WORDS)})(?![a-z])', re.IGNORECASE)


class OwnDataError(DataError):
    """Data of one's own that cannot be used as it is."""


@dataclass(frozen=True)
class Place:
    """Where something is written: a file, and a line of it or the keys that lead to an entry of its JSON."""

    file: Path
    line: int | None = None
    entry: tuple[str, int] | None = None

    def __str__(self) -> str:
        where = self.line or (self.entry and line_of_entry(self.file.read_text(encoding='utf-8-sig'), *self.entry))
        return f'{str(self.file)!r}' + (f', line {where}' if where else '')


def line_of_entry(text: str, key: str, index: int) -> str | None:
    """The line on which entry ``index`` of the list ``key`` begins, of a JSON object; of one long line, the column."""
    decoder, blank = json.JSONDecoder(), re.compile(r'[\s,:]*')

    def after_blank(at: int) -> int:
        found = blank.match(text, at)
        return found.end() if found else at

    at = after_blank(text.index('{') + 1)
    while at < len(text) and text[at] != '}':
        name, at = decoder.raw_decode(text, at)
        at = after_blank(at)
        if name != key:
            at = after_blank(decoder.raw_decode(text, at)[1])
            continue
        at = after_blank(at + 1)
        for _ in range(index):
            at = after_blank(decoder.raw_decode(text, at)[1])
        line = text.count('\n', 0, at) + 1
        return str(line) if '\n' in text.strip() else f'1, column {at + 1}'
    return None


@dataclass
class Object:
    """One annotated object.

    Args:
        label: The name of its class.
        box: x, y, width and height in pixels.
        mask: Polygons (x, y, x, y, ...) or runs as COCO has them; None for a box alone.
        crowd: Whether it is not to be learnt, nor counted as missed.
        place: Where it is written.
    """

    label: str
    box: tuple[float, float, float, float]
    mask: Any
    crowd: bool
    place: Place


@dataclass
class Picture:
    """A picture with what is known of it: objects, or the file of its label map, and the classes in that, or its class.

    ``path`` is below the root of the data, ``size`` its width and height as it is shown, ``part`` one of PARTS or None;
    ``pixels`` counts those of each class, by number, once its label map is written; ``id`` is its own in the data.
    """

    path: str
    size: tuple[int, int]
    part: str | None = None
    objects: list[Object] = field(default_factory=list)
    label_map: Path | None = None
    labels: set[str] = field(default_factory=set)
    pixels: dict[int, int] = field(default_factory=dict)
    id: Any = None


@dataclass
class Found:
    """A data set.

    Args:
        kind: The name of its format.
        root: The folder below which all pictures are.
        pictures: Those with annotations.
        classes: Names in order.
        palette: A colour (R, G, B) a class, if the data says so.
        remarks: What its owner should know before a run.
        values: Of label maps: value of a pixel, or its colour as R * 65536 + G * 256 + B -> number of its class.
        by_colour: Whether values are colours.
        ids: Name of a class -> its id in the data, if that has any on which all its files agree.
    """

    kind: str
    root: Path
    pictures: list[Picture]
    classes: list[str]
    palette: list[tuple[int, int, int]] | None = None
    remarks: list[str] = field(default_factory=list)
    values: dict[int, int] = field(default_factory=dict)
    by_colour: bool = False
    ids: dict[str, int] = field(default_factory=dict)

    def of(self, part: str) -> list[Picture]:
        return [picture for picture in self.pictures if picture.part == part]


class Faults:
    """Sentences on what makes data unusable, raised together."""

    def __init__(self, root: Path) -> None:
        self.root, self.sentences = root, []

    def add(self, place: Place | Path, problem: str) -> None:
        place = place if isinstance(place, Place) else Place(place)
        # finding the line of an entry reads its file again
        self.sentences.append(f'{place}: {problem}' if len(self.sentences) < MOST_TOLD else '')

    def stop(self) -> None:
        """Raise if there are any."""
        if self.sentences:
            more = len(self.sentences) - MOST_TOLD
            told = [*self.sentences[:MOST_TOLD], *([f'... and {more} more'] if more > 0 else [])]
            raise OwnDataError('\n'.join([f'the data in {str(self.root)!r} cannot be used as it is:', *told]))


def part_of(path: str) -> str | None:
    """The part of a data set that the last telling word of a path names: 'val' of ``a/valid/x.jpg``."""
    words = _PART_WORD.findall(path)
    return _WORDS[words[-1].lower()] if words else None


def folder_part(path: str) -> str | None:
    """The same of a picture's folders: names of pictures are anything."""
    return part_of(path.rpartition('/')[0])


def tally(what: str, cases: Sequence[object], then: str) -> str:
    """'boxes without area: 3, such as the one of 'a.xml', line 7: not used'."""
    first = repr(cases[0]) if isinstance(cases[0], str) else f'the one of {cases[0]}'
    return f'{what}: {len(cases)}, {"such as " * (len(cases) > 1)}{first}: {then}'


def numbers(values: Sequence[Any]) -> Iterator[float]:
    """The values as finite numbers; a ValueError that shows them if one is none."""
    for value in values:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ValueError(f'expected numbers; got {list(values)!r}') from None
        if number != number or number in (float('inf'), float('-inf')):
            raise ValueError(f'expected finite numbers; got {list(values)!r}')
        yield number
