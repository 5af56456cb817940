"""What a data set of one's own holds, as a table in Markdown."""

import colorsys
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

from mmsoft.datasets.own import PARTS, Found, Picture

MOST_CLASSES = 40  # rows
SMALL, MEDIUM = 32**2, 96**2  # pixels of COCO's small and medium objects


def colours(count: int) -> list[tuple[int, int, int]]:
    """Colours (R, G, B) far apart."""
    turn = (5**0.5 - 1) / 2  # of the circle of hues: the golden ratio keeps any number of them apart
    shades = (
        colorsys.hsv_to_rgb(index * turn % 1, (0.9, 0.6)[index % 2], (0.9, 0.65)[index // 2 % 2])
        for index in range(count)
    )
    return [(round(255 * r), round(255 * g), round(255 * b)) for r, g, b in shades]


def report(found: Found, task: str) -> str:
    """Tables of pictures, of classes, and of sizes."""
    parts = [part for part in PARTS if found.of(part)]
    unit = {'labels': 'share of the pixels', 'classes': 'pictures'}.get(task, 'objects')
    lines = [f'# {found.kind} in {found.root}', '', *_row('', *parts), f'|---|{"---:|" * len(parts)}']
    lines += _row('pictures', *(len(found.of(part)) for part in parts))
    if task in ('boxes', 'masks'):
        lines += _row('objects', *(sum(len(p.objects) for p in found.of(part)) for part in parts))
        lines += _row('pictures without objects', *(sum(not p.objects for p in found.of(part)) for part in parts))
    lines += ['', *_row(f'class ({unit})', *parts), f'|---|{"---:|" * len(parts)}']
    counts = [_counts(found, found.of(part), task) for part in parts]
    for number, name in enumerate(found.classes[:MOST_CLASSES]):
        lines += _row(name, *(_cell(count, number, task) for count in counts))
    if len(found.classes) > MOST_CLASSES:
        lines += _row(f'... and {len(found.classes) - MOST_CLASSES} more')
    lines += ['', *_row('size', 'smallest', 'median', 'largest'), '|---|---:|---:|---:|']
    lines += _row('pictures, pixels', *(f'{w} x {h}' for w, h in _three([p.size for p in found.pictures])))
    boxes = [entry.box[2:] for picture in found.pictures for entry in picture.objects]
    if boxes and task != 'labels':
        lines += _row('boxes, pixels', *(f'{w:.0f} x {h:.0f}' for w, h in _three(boxes)))
        areas = np.array([width * height for width, height in boxes])
        share = [100 * float(kind.mean()) for kind in (areas < SMALL, (areas >= SMALL) & (areas < MEDIUM))]
        lines += [
            '',
            f'{share[0]:.0f} % of the boxes are small as COCO counts (below 32 x 32), {share[1]:.0f} % medium.',
        ]
    remarks = [f'- {remark}' for remark in found.remarks]
    return '\n'.join([*lines, *([''] if remarks else []), *remarks, ''])


def _row(*cells: object) -> list[str]:
    texts = (str(cell).replace('|', '\\|').replace('\n', ' ') for cell in cells)
    return [f'| {" | ".join(texts)} |']


def _counts(found: Found, pictures: Sequence[Picture], task: str) -> Counter:
    """Number of a class -> pixels, pictures or objects."""
    if task == 'labels':
        return sum((Counter(picture.pixels) for picture in pictures), Counter())
    numbers = {name: index for index, name in enumerate(found.classes)}
    labels = chain.from_iterable(p.labels or [entry.label for entry in p.objects] for p in pictures)
    return Counter(numbers[label] for label in labels)


def _cell(count: Counter, number: int, task: str) -> str:
    return f'{100 * count[number] / max(1, sum(count.values())):.1f} %' if task == 'labels' else str(count[number])


def _three(sizes: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The smallest, the median and the largest by area."""
    ranked = sorted(sizes, key=lambda size: size[0] * size[1])
    return [ranked[0], ranked[len(ranked) // 2], ranked[-1]]
