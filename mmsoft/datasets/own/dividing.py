"""Pictures divided into those for training and those for validation, where the data does not say."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable

from .found import Found, OwnDataError, Picture, tally

VAL_SHARE = 0.2


def divide(found: Found, whole: bool = False) -> None:
    """Give every picture a part; remark on what was chosen, and on pictures that are in two parts.

    The choice depends on names and contents alone, so every command makes the same.
    """
    if whole and not found.of('test') and not found.of('val'):
        for picture in found.pictures:
            picture.part = 'test'
        return
    same = _same_content(found)
    told = Counter(picture.part for picture in found.pictures)
    if told[None] and len(told) > 1:
        left = [picture.path for picture in found.pictures if picture.part is None]
        found.remarks.append(tally('pictures in no part of the data', left, 'not used'))
        found.pictures = [picture for picture in found.pictures if picture.part]
    if not told['train'] and not whole:
        if set(told) - {None}:
            names = ', '.join(sorted(part for part in told if part))
            found.remarks.append(f'the data has pictures for {names} alone: they are divided anew')
        for picture in found.pictures:
            picture.part = None
        _divide(found.pictures, found, same)
    elif told['train'] and not told['val'] and told['test']:
        found.remarks.append('the data has no part for validation: the one for testing serves')
    elif told['train'] and not told['val']:
        _divide(found.of('train'), found, same)
    _tell_shared(found, same)
    seen = set().union(*map(labels_of, found.of('train')))
    unseen = sorted(set().union(*map(labels_of, found.of('val') + found.of('test'))) - seen)
    if unseen and not whole:
        found.remarks.append(f'classes without an example to train on: {", ".join(unseen[:8])}')


def _divide(pictures: list[Picture], found: Found, same: dict[str, str]) -> None:
    """A fifth for validation: of every class one picture, of those with few pictures first, and then any.

    A class of one picture stays in training, and so do the last pictures of any.
    """
    groups = defaultdict(list)
    for picture in pictures:
        groups[same.get(picture.path, picture.path)].append(picture)
    if len(groups) < 2:
        copies = f'{len(pictures)} copies of one' if len(pictures) > 1 else len(pictures)
        raise OwnDataError(
            f'{copies} annotated picture in {str(found.root)!r} cannot be divided: two different ones are needed'
        )
    order = sorted(groups, key=lambda name: hashlib.sha256(name.encode()).digest())
    labels = {name: set().union(*(labels_of(picture) for picture in groups[name])) for name in order}
    counts, chosen = Counter(label for name in order for label in labels[name]), set()

    def take(candidates: Iterable[str], number: int) -> None:
        for name in candidates:
            if number <= 0 or len(chosen) >= len(order) - 1:
                return
            if name not in chosen and all(left[label] > 1 for label in labels[name]):
                chosen.add(name)
                left.subtract(labels[name])
                number -= 1

    left = Counter(counts)
    for label, _ in sorted(counts.items(), key=lambda item: (item[1], item[0])):
        if not any(label in labels[name] for name in chosen):
            take((name for name in order if label in labels[name]), 1)
    take(order, max(1, round(VAL_SHARE * len(order))) - len(chosen))
    if not chosen:  # each picture is the last of a class
        chosen.add(order[0])
    for name, group in groups.items():
        for picture in group:
            picture.part = 'val' if name in chosen else 'train'
    number = sum(picture.part == 'val' for picture in pictures)
    found.remarks.append(
        f'set aside for validation: {number} of the {len(pictures)} pictures, the same in every run; '
        'folders called train and val would say otherwise'
    )


def labels_of(picture: Picture) -> set[str]:
    """Classes in a picture."""
    return picture.labels or {entry.label for entry in picture.objects if not entry.crowd}


def _same_content(found: Found) -> dict[str, str]:
    """Of pictures whose files are equal: path -> the first of them. Only files of one length are read."""
    by_length, first, same = defaultdict(list), {}, {}
    for picture in found.pictures:
        by_length[(found.root / picture.path).stat().st_size].append(picture.path)
    for paths in by_length.values():
        for path in paths if len(paths) > 1 else ():
            digest = hashlib.sha256((found.root / path).read_bytes()).digest()
            same[path] = first.setdefault(digest, path)
    return same


def _tell_shared(found: Found, same: dict[str, str]) -> None:
    """Pictures to train on that are tested with as well flatter the model."""
    trained = {same.get(picture.path, picture.path): picture.path for picture in found.of('train')}
    for part in ('val', 'test'):
        paths = [(picture.path, trained.get(same.get(picture.path, picture.path))) for picture in found.of(part)]
        shared = [(path, twin) for path, twin in paths if twin]
        if shared:
            found.remarks.append(
                f'pictures of {part} that are in train as well: {len(shared)}, such as {shared[0][0]!r} and '
                f'{shared[0][1]!r}: results on them flatter the model'
            )
