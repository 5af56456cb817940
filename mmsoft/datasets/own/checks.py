"""What is said of data before a run: boxes outside, classes without an example, names that are easily confused."""

from collections import Counter, defaultdict

from .dividing import labels_of
from .found import Faults, Found, Object, Picture, tally

LEAST_SIDE = 1.0  # pixels; mmdet passes over smaller boxes
SLACK = 1.0  # pixels that boxes may reach beyond the border without a word


def check(found: Found, task: str, faults: Faults) -> None:
    """Take out objects that nothing can be learnt from, with a remark a kind; what cannot be is a fault."""
    if task != 'classes':
        _check_objects(found)
    _check_repeated(found, faults)
    if task in ('masks', 'labels'):
        _check_masks(found, task, faults)
    _check_names(found)
    counts = Counter(label for picture in found.pictures for label in labels_of(picture))
    empty = [name for name in found.classes if not counts[name]]
    if empty and counts:
        found.remarks.append(f'classes without an example: {", ".join(empty[:8])}')
    if not counts:
        faults.add(found.root, f'{len(found.pictures)} pictures of {found.kind}, but not one object: nothing to learn')
    if task in ('classes', 'labels') and len(found.classes) == 1:
        model = dict(classes='classifier', labels='segmentor')[task]
        faults.add(found.root, f'all pictures are of one class, {found.classes[0]!r}: a {model} needs two')


def _check_objects(found: Found) -> None:
    """Boxes of no area and outside of the picture go; those that reach over its border are cut there."""
    gone, cut = defaultdict(list), []
    for picture in found.pictures:
        kept = []
        for entry in picture.objects:
            problem, box = _fit(entry, picture)
            if problem:
                gone[problem].append(entry.place)
                continue
            if max(abs(a - b) for a, b in zip(box, entry.box, strict=True)) > SLACK:
                cut.append(entry.place)
            entry.box = box
            kept.append(entry)
        picture.objects = kept
    for problem, places in gone.items():
        found.remarks.append(tally(f'boxes {problem}', places, 'not used'))
    if cut:
        found.remarks.append(tally('boxes that reach outside of their picture', cut, 'cut at its border'))


def _fit(entry: Object, picture: Picture) -> tuple[str, tuple[float, float, float, float]]:
    """What is wrong with a box, or the part of it that lies within the picture."""
    x, y, width, height = entry.box
    if width < 0 or height < 0:
        return 'of negative width or height', entry.box
    left, top, right, bottom = max(x, 0), max(y, 0), min(x + width, picture.size[0]), min(y + height, picture.size[1])
    if right <= left or bottom <= top:
        return 'without area' if not (width and height) else 'outside of their picture', entry.box
    if right - left < LEAST_SIDE or bottom - top < LEAST_SIDE:
        return 'less than a pixel wide or high', entry.box
    return '', (left, top, right - left, bottom - top)


def _check_repeated(found: Found, faults: Faults) -> None:
    """Two files on one picture."""
    seen = set()
    for picture in found.pictures:
        if picture.path in seen:
            faults.add(found.root / picture.path, 'is annotated in two files: leave one')
        seen.add(picture.path)


def _check_masks(found: Found, task: str, faults: Faults) -> None:
    bare = [entry for picture in found.pictures for entry in picture.objects if not entry.mask and not entry.crowd]
    for entry in bare[:1]:
        instead = (
            'take a config without masks, such as a RetinaNet' if task == 'masks' else 'a segmentor needs outlines'
        )
        faults.add(
            entry.place, f'objects with a box and no outline: {len(bare)}, this {entry.label!r} first: {instead}'
        )


def _check_names(found: Found) -> None:
    """Names that differ in case or blanks alone are mostly one class, misspelt."""
    alike = defaultdict(list)
    for name in found.classes:
        alike[''.join(name.lower().split()).replace('_', '').replace('-', '')].append(name)
    for names in alike.values():
        if len(names) > 1:
            found.remarks.append(f'the classes {" and ".join(map(repr, names))} are called almost the same: is it one?')
    if '' in found.classes:
        found.remarks.append('a class has an empty name')
