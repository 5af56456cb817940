"""Shipped files; names that come from data, and where files named after them go; disks that take no more."""

import errno
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count
from math import isfinite
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

WINDOWS = os.name == 'nt'
LONGEST = 240  # bytes of a name, of the 255 that disks take: a name beside it is longer
# What stands on Windows for a drive, a stream, a pattern or a device, and endings that it takes off.
_NOT_ON_WINDOWS = re.compile(r'[<>:"|?*]|[. ]$|^(con|prn|aux|nul|com\d|lpt\d)(\.|$)', re.IGNORECASE)
# Controls, separators of lines, turns of the direction of writing, halves of characters.
_STEERS = re.compile('[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]')
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EROFS, getattr(errno, 'EDQUOT', errno.ENOSPC)}


def shipped(name: str) -> Path:
    """The folder ``tools`` or ``configs``: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).parent
    return next(path for path in (package / '.mim' / name, package.parent / name) if path.is_dir())


def disk_is_full(error: BaseException) -> bool:
    """Whether nothing can be written any more: no room, a quota or limit, or a disk that is read only."""
    return isinstance(error, OSError) and error.errno in _FULL


def shown(text: str, keep: str = '') -> str:
    """The text with what steers a terminal, or is no whole character, as an escape; except for what to ``keep``."""
    return _STEERS.sub(lambda found: found[0] if found[0] in keep else _escape(found[0]), text)


def _escape(character: str) -> str:
    if '\udc80' <= character <= '\udcff':  # how Python tells of a byte
        return f'\\x{ord(character) - 0xDC00:02x}'
    return repr(character)[1:-1]


def _bytes(name: str) -> bytes:
    """A name as the disk has it."""
    try:
        return os.fsencode(name)
    except UnicodeEncodeError:  # of no file, but data may have it
        return name.encode('utf-8', 'surrogatepass')


def json_text(name: str) -> str:
    """The name, or if it is not UTF-8, which JSON cannot hold, how it is shown."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return shown(name)
    return name


def json_name(key: str, name: str) -> dict[str, str]:
    """``{key: name}``; if it is not UTF-8, ``<key>_bytes`` has its bytes, percent-encoded."""
    text = json_text(name)
    return {key: text} if text == name else {key: text, f'{key}_bytes': _quoted(name)}


def json_names(key: str, names: Sequence[str]) -> dict[str, list[str]]:
    """The same of several names."""
    texts = list(map(json_text, names))
    return {key: texts} if texts == list(names) else {key: texts, f'{key}_bytes': [*map(_quoted, names)]}


def json_plain(value: Any) -> Any:
    """The value with text that JSON can hold, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {json_plain(key): json_plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_plain(entry) for entry in value]
    if isinstance(value, str):
        return json_text(value)
    return None if isinstance(value, float) and not isfinite(value) else value


def _quoted(name: str) -> str:
    return quote_from_bytes(_bytes(name))


def name_from_json(key: str, entry: Mapping[str, str]) -> str:
    """What ``json_name`` was given."""
    encoded = entry.get(f'{key}_bytes')
    return entry[key] if encoded is None else os.fsdecode(unquote_to_bytes(encoded))


def place_below(folder: str | Path, name: str) -> Path:
    """``folder/name``; if that leaves the folder, or suits no disk, a name with a digest, straight in the folder."""
    return Path(folder, next(_candidates(name, name)))


def places_below(folder: str | Path, wanted: Mapping[str, str], sources: Iterable[str | Path] = ()) -> dict[str, Path]:
    """Places for many names: name -> where it would go below the folder, if that is below it and nobody else's.

    Two are the same where a disk that ignores cases says so, or where one would be the folder of another. The first
    keeps its place, others get names of their own. A place among the ``sources`` is an error.
    """
    files, folders, places = set(), set(), {}
    for name, target in wanted.items():
        for candidate in _candidates(name, target):
            key = unicodedata.normalize('NFC', candidate).casefold()
            above = {str(parent) for parent in PurePosixPath(key).parents}
            if key not in files and key not in folders and files.isdisjoint(above):
                break
        files.add(key)
        folders |= above
        places[name] = Path(folder, candidate)
    read = {_identity(parent) for parent in {Path(source).parent for source in sources}} - {None}
    for parent in {place.parent for place in places.values()}:
        if _identity(parent) in read:
            raise ValueError(
                f'{str(parent)!r} holds pictures of the data, which would be overwritten: name another folder'
            )
    return places


def _identity(folder: Path) -> tuple[int, int] | None:
    """What is the same for all names of a folder; None if it is not there."""
    try:
        status = folder.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _candidates(name: str, target: str) -> Iterator[str]:
    """The target if it is an ordinary path, then names that are made of ``name``: letters, a digest, a suffix."""
    target = target.replace(os.sep, '/')
    if _is_ordinary(target):
        yield target
    parts = re.fullmatch(r'(?s)(?:.*[/\\])?(.*?)((?:\.\w{1,8})?)', target, re.ASCII)
    letters = re.sub(r'[^A-Za-z0-9_-]+', '_', parts[1])[:60]
    for salt in count():
        digest = sha256(b'%d/' % salt + _bytes(name)).hexdigest()[:16]
        yield f'{letters}-{digest}{parts[2]}'


def is_file_name(name: str, room: int) -> bool:
    """Whether files may be called so, with ``room`` more bytes behind it."""
    return '/' not in name and _is_ordinary(name) and len(name.encode()) + room <= LONGEST


def _is_ordinary(name: str) -> bool:
    """A relative path of names that every disk here takes, and that mean themselves."""
    return '\\' not in name and not _STEERS.search(name) and all(map(_is_ordinary_part, name.split('/')))


def _is_ordinary_part(part: str) -> bool:
    if part in ('', '.', '..') or len(part.encode()) > LONGEST:
        return False
    return not (WINDOWS and _NOT_ON_WINDOWS.search(part))
