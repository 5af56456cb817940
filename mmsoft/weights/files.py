"""Reading checkpoint files: tensors only, no code from the file is ever run."""

import json
import logging
from collections.abc import Mapping
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmsoft.versions import StackError, require

from .archives import check_crc, is_zip, read_archive
from .messages import CheckpointError, announce
from .sources import locate
from .writing import DIGEST, META, digest_of

# Buffers that a model computes from its own sizes.
COMPUTED = ('relative_position_index', 'attn_mask', 'rope.rotations')
# With the counters, which say nothing of a model.
IGNORED = (*COMPUTED, 'num_batches_tracked')
EMA_KEY = 'state_dict_ema'  # averaged weights, as timm calls them; DeiT's trainers say model_ema
# Where weights sit in a checkpoint, the preferred place first; the dict itself comes last.
WRAPPERS = (EMA_KEY, 'model_ema', 'state_dict', 'model')
MOST_OF_NOTHING = 1 << 16  # product of the lengths of a tensor without numbers, where 0 counts as 1


def read_checkpoint(source: str | Path, trust: bool = False) -> Any:
    """The object in a ``.pth`` or ``.safetensors`` file, on the CPU; for what a source may be, see sources.locate.

    ``trust`` lets a pickle make objects of any kind, which may run code of whoever wrote the file.
    """
    path = locate(source)
    try:
        content = _read(path, trust)
    except CheckpointError as error:
        raise CheckpointError(
            f'checkpoint {str(path)!r} is refused: {error}; save its state_dict alone and load that, '
            'or, if you trust who made it, read it with --trust-checkpoint (in Python: trust=True)'
        ) from error
    except StackError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader say
        reason = str(error)[:300] or type(error).__name__
        raise CheckpointError(f'checkpoint {str(path)!r} cannot be read: {reason}; is the file complete?') from error
    if isinstance(content, (str, Path)):  # which would pass for the name of another file
        raise CheckpointError(f'checkpoint {str(path)!r} holds a text, not weights')
    _warn_of_invalid(path, content)
    return content


def _read(path: Path, trust: bool) -> Any:
    if path.suffix == '.safetensors':
        return _read_safetensors(path)
    if trust:
        if is_zip(path):  # older files have no CRC
            check_crc(path)
        return torch.load(path, map_location='cpu', weights_only=False)
    return read_archive(path)


def _read_safetensors(path: Path) -> dict[str, Any]:
    """Weights, compared with the digest in files that we write; below ``state_dict`` if the file says what they are."""
    require('safetensors')
    from safetensors import safe_open

    with safe_open(path, 'pt') as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        described = file.metadata() or {}
    promised, meta = described.get(DIGEST), json.loads(described.get(META, 'null'))
    if promised is not None and digest_of(weights) != promised:
        raise ValueError('its tensors are not those that were written')
    return dict(meta=meta, state_dict=weights) if isinstance(meta, dict) else weights


def _warn_of_invalid(path: Path, content: Any) -> None:
    """Say once of a file which of its weights are not finite."""
    if not isinstance(content, Mapping):
        return
    places = [content, *(content[name] for name in WRAPPERS if isinstance(content.get(name), Mapping))]
    weights = {str(name): value for place in places for name, value in place.items() if isinstance(value, Tensor)}
    wrong = [name for name, value in weights.items() if not _is_finite(value)]
    if wrong:
        names = ', '.join(wrong[:3]) + ', ...' * (len(wrong) > 3)
        _warn_once(f'{len(wrong)} of {len(weights)} tensors in {str(path)!r} hold values that are not finite: {names}')


def _is_finite(value: Tensor) -> bool:
    if not value.is_floating_point() or not value.numel():
        return True
    return all(bound.isfinite() for bound in (value.float() if value.itemsize == 1 else value).aminmax())


def _is_hollow(value: Tensor) -> bool:
    return not value.numel() and prod(length or 1 for length in value.shape) > MOST_OF_NOTHING


@cache
def _warn_once(text: str) -> None:
    announce(text, logging.WARNING)


def read_state_dict(source: str | Path | Mapping, trust: bool = False) -> dict[str, Tensor]:
    """Weights of a file, an address or a loaded checkpoint: unwrapped, and without ``module.`` before names."""
    checkpoint = read_checkpoint(source, trust) if isinstance(source, (str, Path)) else source
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(f'a checkpoint is a dict of tensors; got {type(checkpoint).__name__}')
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    odd = next((name for name in checkpoint if isinstance(name, str) and not name.isprintable()), None)
    if odd is not None:
        raise CheckpointError(f'no weight is called {odd[:100]!a}: this is no checkpoint of a model')
    weights = {
        name.removeprefix('module.'): value
        for name, value in checkpoint.items()
        if isinstance(name, str) and isinstance(value, Tensor) and not name.endswith(COMPUTED)
    }
    hollow = next((name for name, value in weights.items() if _is_hollow(value)), None)
    if hollow is not None:  # a model that is built after its shape would fill the memory
        raise CheckpointError(f'{hollow!r} is of the shape {tuple(weights[hollow].shape)}, but holds no numbers')
    if not weights:
        found = ', '.join(str(name)[:100] for name in list(checkpoint)[:8]) or 'nothing'
        raise CheckpointError(f'the checkpoint holds no weights: looked under {", ".join(WRAPPERS)}; found {found}')
    return weights
