"""Writing weights: files that are whole or absent, and equal for equal content."""

import hashlib
import io
import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmsoft.files import json_plain
from mmsoft.versions import require

from .messages import CheckpointError

WRITTEN = ('.pth', '.safetensors')
# In the metadata of a .safetensors file, which has no checksum and no place for other things than tensors of its own.
DIGEST, META = 'mmsoft.sha256', 'mmsoft.meta'


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name beside ``path`` to write under; it becomes ``path`` when all went well and is removed otherwise."""
    partial = path.with_name(f'{path.name}.{uuid.uuid4().hex[:8]}.part')
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write(content: bytes, path: Path) -> None:
    try:
        with whole_file(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise CheckpointError(f'{str(path)!r} cannot be written: {error}') from error


def to_bytes(weights: Mapping[str, Tensor], suffix: str, meta: Mapping[str, Any] | None = None) -> bytes:
    """A file of these weights, alone or with ``meta``: ``.pth`` or ``.safetensors``, which has it as JSON.

    Equal weights give equal bytes: no file name goes in, and no storage is larger than its tensor or shared.
    """
    weights = {name: value.detach().contiguous().clone() for name, value in weights.items()}
    if suffix == '.safetensors':
        require('safetensors')
        from safetensors.torch import save

        described = {META: json.dumps(json_plain(meta))} if meta else {}
        return _sorted_header(save(weights, metadata={'format': 'pt', DIGEST: digest_of(weights), **described}))
    buffer = io.BytesIO()  # a file's name would become that of the archive's folder
    torch.save(weights if meta is None else dict(meta=dict(meta), state_dict=weights), buffer)
    return buffer.getvalue()


def _sorted_header(content: bytes) -> bytes:
    """A .safetensors file with its metadata in order, which its library writes in any."""
    size = int.from_bytes(content[:8], 'little')
    header = json.loads(content[8 : 8 + size])
    header['__metadata__'] = dict(sorted(header['__metadata__'].items()))
    text = json.dumps(header, ensure_ascii=False, separators=(',', ':')).encode()
    return content[:8] + text.ljust(size) + content[8 + size :]


def digest_of(weights: Mapping[str, Tensor]) -> str:
    """The sha256 of names, types, shapes and numbers."""
    digest = hashlib.sha256()
    for name, value in sorted(weights.items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.contiguous().reshape(-1).view(torch.uint8).numpy())  # pyright: ignore[reportArgumentType]
    return digest.hexdigest()
