"""torch's files of tensors, read by us: the zip archives of today, and the older files without one.

Every size that a file names is compared with what is there before memory is taken, and every byte of a tensor with
the archive's CRC.
"""

import os
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from .messages import CheckpointError
from .pickles import PLAIN, SKIPPED, Machine, Maker

SHARED = 16  # Times that the tensors of a file may take its size, where they share storages.
_MAGIC = 0x1950A86A20F9469CFC6C  # first in a file without archive
_PROTOCOL = 1001
_CHUNK = 1 << 18  # bytes that stay in the cache between reading them and their CRC
_DTYPES = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype) and name[0] != 'q'}
_KINDS = dict(Double='float64', Float='float32', Half='float16', BFloat16='bfloat16', Long='int64', Int='int32')
_KINDS |= dict(Short='int16', Char='int8', Byte='uint8', Bool='bool', Untyped='uint8')
_KINDS |= dict(ComplexDouble='complex128', ComplexFloat='complex64')


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class of storages."""

    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _Storage:
    """Bytes, and the type of numbers that they are."""

    content: Tensor
    dtype: torch.dtype


def read_archive(path: Path) -> Any:
    """The object in a file of ``torch.save``, if it is made of plain data and tensors; a CheckpointError otherwise."""
    read = _read_zip if is_zip(path) else _read_legacy
    with path.open('rb') as file:
        return read(file)


def is_zip(path: Path) -> bool:
    """As torch decides it; zipfile looks for an archive anywhere in a file."""
    with path.open('rb') as file:
        return file.read(4) == b'PK\x03\x04'


def check_crc(path: Path) -> None:
    """Raise unless every entry of an archive is as it was written."""
    with zipfile.ZipFile(path) as archive:
        wrong = archive.testzip() if any(entry.CRC for entry in archive.infolist()) else None
    if wrong is not None:
        raise ValueError(f'its entry {wrong[:100]!a} is damaged')


def check_entries(file: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    """The entries of an archive, each stored as it is; raise where they promise more than the file has."""
    archive, size = zipfile.ZipFile(file), os.fstat(file.fileno()).st_size
    entries = {entry.filename: entry for entry in archive.infolist()}
    if any(name.endswith('/constants.pkl') for name in entries):
        raise CheckpointError('it is a TorchScript archive, which holds code')
    if len(entries) < len(archive.infolist()):
        raise ValueError('its archive has two entries of one name')
    for name, entry in entries.items():
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise CheckpointError(f'its entry {name[:100]!a} is compressed, which no file of torch is')
    if sum(entry.file_size for entry in entries.values()) > size:
        raise ValueError('the entries of its archive are larger than the file')
    if not any(entry.CRC for entry in entries.values()):
        for entry in entries.values():
            entry.CRC = None  # pyright: ignore[reportAttributeAccessIssue] # torch.serialization.set_crc32_options(False) writes none
    return entries


def _read_zip(file: BinaryIO) -> Any:
    entries, archive = check_entries(file), zipfile.ZipFile(file)
    roots = [name.removesuffix('data.pkl') for name in entries if name.endswith('/data.pkl')]
    if len(roots) != 1:
        raise ValueError('it is an archive, but none that torch.save writes')
    root = roots[0]
    order = f'{root}byteorder'
    if order in entries and archive.read(entries[order]).decode() != sys.byteorder:
        raise CheckpointError(f'its numbers are not in the {sys.byteorder}-endian order of this machine')
    loaded: dict[str, Tensor] = {}

    def load(key: str, nbytes: int) -> Tensor:
        entry = entries.get(f'{root}data/{key}')
        if entry is None or nbytes != entry.file_size:
            raise ValueError(f'it has no storage {key[:100]!a} of {nbytes} bytes')
        if key not in loaded:
            loaded[key] = torch.empty(nbytes, dtype=torch.uint8)
            with archive.open(entry) as content:
                _read_into(loaded[key], content)
        return loaded[key]

    content = archive.read(entries[f'{root}data.pkl'])
    return _Tensors(load, os.fstat(file.fileno()).st_size).read(BytesIO(content), len(content))


def _read_into(target: Tensor, file: Any) -> None:
    view = memoryview(target.numpy())  # pyright: ignore[reportArgumentType]
    while view:
        count = file.readinto(view[:_CHUNK])
        if not count:
            raise EOFError('it ends within a tensor')
        view = view[count:]


class _Rest:
    """A file that is asked for no more than it has, so that no memory is taken for it."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.readline = file.readline

    def left(self) -> int:
        return self.size - self.file.tell()

    def read(self, size: int) -> bytes:
        if size > _CHUNK and size > self.left():
            raise EOFError(f'it ends where {size} bytes should come')
        return self.file.read(size)


def _read_legacy(file: BinaryIO) -> Any:
    """Four pickles (of which the third tells of the system), the keys of the storages, and these."""
    rest = _Rest(file)
    if _plain(rest) != _MAGIC or _plain(rest) != _PROTOCOL:
        raise ValueError('it is no file that torch.save writes')
    system = _plain(rest)
    if type(system) is not dict or system.get('little_endian') is not (sys.byteorder == 'little'):
        raise CheckpointError(f'its numbers are not in the {sys.byteorder}-endian order of this machine')
    promised: dict[str, tuple[Tensor, int]] = {}
    taken = 0

    def promise(key: str, nbytes: int) -> Tensor:
        """Memory for a storage that comes later in the file."""
        nonlocal taken
        if key not in promised:
            taken += nbytes
            if taken > rest.left():
                raise ValueError('its storages are larger than the file')
            promised[key] = torch.empty(nbytes, dtype=torch.uint8), nbytes
        if promised[key][1] != nbytes:
            raise ValueError(f'its storage {key[:100]!a} has two sizes')
        return promised[key][0]

    content, keys = _Tensors(promise, rest.size).read(rest, rest.left()), _plain(rest)
    if type(keys) is not list or sorted(keys) != sorted(promised):
        raise ValueError('its list of storages does not name those of its tensors')
    for key in keys:
        target, nbytes = promised[key]
        count = int.from_bytes(rest.read(8), sys.byteorder)
        if nbytes not in [count * itemsize for itemsize in (1, 2, 4, 8, 16)]:
            raise ValueError(f'its storage {key[:100]!a} has {count} numbers in {nbytes} bytes')
        _read_into(target, file)
    return content


def _plain(rest: _Rest) -> Any:
    return Machine({}, rest.left()).run(rest)


class _Tensors:
    """Makes tensors for the pickle of a file; ``load`` gives the bytes of a storage by its key and their number."""

    def __init__(self, load: Callable[[str, int], Tensor], file_size: int) -> None:
        self.load, self.left = load, SHARED * file_size

    def read(self, stream: Any, size: int) -> Any:
        """The object in a pickle of so many bytes."""
        return Machine({**PLAIN, **SKIPPED, **_TYPES, **self.names()}, size, self.storage).run(stream)

    def names(self) -> dict[tuple[str, str], Maker]:
        return {
            ('torch._utils', '_rebuild_tensor'): Maker(self.tensor),
            ('torch._utils', '_rebuild_tensor_v2'): Maker(lambda *options: self.tensor(*options[:4], *options[6:])),
            ('torch._utils', '_rebuild_tensor_v3'): Maker(
                lambda *options: self.tensor(*options[:4], *options[7:], dtype=options[6])
            ),
            ('torch._utils', '_rebuild_parameter'): Maker(lambda value, *_: value),
        }

    def storage(self, found: Any) -> _Storage:
        if type(found) is not tuple or len(found) < 5 or found[0] != 'storage' or any(found[5:]):
            raise CheckpointError('its pickle refers to other things than storages outside of it')
        _, kind, key, _, count = found[:5]
        if type(kind) is not _Kind or type(key) is not str or not _is_size(count):
            raise ValueError('its pickle refers to a storage in a form that torch does not write')
        return _Storage(self.load(key, count * kind.dtype.itemsize), kind.dtype)

    def tensor(
        self, source: Any, offset: Any, size: Any, stride: Any, metadata: Any = None, dtype: Any = None
    ) -> Tensor:
        if type(source) is not _Storage or metadata:
            raise CheckpointError('it holds a tensor of another form than weights have')
        dtype = source.dtype if dtype is None else dtype
        if dtype not in _DTYPES.values():
            raise CheckpointError('it holds a tensor of other things than numbers')
        _check_view(offset, size, stride, source.content.numel() // dtype.itemsize)
        self.left -= prod(size) * dtype.itemsize
        if self.left < 0:
            raise ValueError(f'its tensors share storages and would take more than {SHARED} times its own size')
        return torch.empty(0, dtype=dtype).set_(source.content.untyped_storage(), offset, tuple(size), tuple(stride))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _check_view(offset: Any, size: Any, stride: Any, room: int) -> None:
    """Raise unless a tensor lies within a storage of ``room`` numbers and has no more of them."""
    sizes = (*size, *stride) if type(size) in (tuple, torch.Size) and type(stride) is tuple else (None,)
    if len(sizes) > 128 or not all(map(_is_size, (offset, *sizes))) or len(size) != len(stride):
        raise ValueError('it holds a tensor whose sizes and strides are no such numbers')
    count = prod(size)
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True)) if count else offset - 1
    if last >= room or count > room or prod(length for length in size if length) >= 1 << 48:
        raise ValueError(f'it holds a tensor of the shape {tuple(size)} in a storage of {room} numbers')


def _size(lengths: Any = ()) -> torch.Size:
    if type(lengths) not in (tuple, list) or len(lengths) > 64 or not all(map(_is_size, lengths)):
        raise CheckpointError('it holds a torch.Size of other things than sizes')
    return torch.Size(lengths)


def _device(kind: Any, index: Any = None) -> torch.device:
    if type(kind) is not str or not (index is None or _is_size(index)):
        raise CheckpointError('it holds a torch.device of other things than a name and a number')
    return torch.device(kind) if index is None else torch.device(kind, index)


_TYPES: dict[tuple[str, str], Any] = {
    **{('torch', name): dtype for name, dtype in _DTYPES.items()},
    **{('torch', f'{name}Storage'): _Kind(getattr(torch, dtype)) for name, dtype in _KINDS.items()},
    ('torch.storage', 'UntypedStorage'): _Kind(torch.uint8),
    ('torch', 'Size'): Maker(_size),
    ('torch', 'device'): Maker(_device),
}
