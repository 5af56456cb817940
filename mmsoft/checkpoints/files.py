"""Reading checkpoint files: tensors only, no code from the file is ever run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mmsoft.versions import StackError, require

from .archives import read_archive
from .messages import CheckpointError
from .sources import locate

# Buffers that a model computes from its own sizes.
COMPUTED = ('relative_position_index', 'attn_mask')
# With the counters, which say nothing of a model.
IGNORED = (*COMPUTED, 'num_batches_tracked')
EMA_KEY = 'state_dict_ema'  # averaged weights, as timm calls them
# Where weights sit in a checkpoint, the preferred place first; the dict itself comes last.
WRAPPERS = (EMA_KEY, 'state_dict', 'model')


def read_checkpoint(source: str | Path, trust: bool = False) -> Any:
    """The object in a ``.pth`` or ``.safetensors`` file, on the CPU; for what a source may be, see sources.locate.

    ``trust`` lets a pickle make objects of any kind, which may run code of whoever wrote the file.
    """
    path = locate(source)
    try:
        if path.suffix == '.safetensors':
            require('safetensors')
            from safetensors.torch import load_file

            return load_file(path)
        if trust:
            return torch.load(path, map_location='cpu', weights_only=False)
        return read_archive(path)
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


def read_state_dict(source: str | Path | Mapping, trust: bool = False) -> dict[str, Tensor]:
    """Weights of a file, an address or a loaded checkpoint: unwrapped, and without ``module.`` before names."""
    checkpoint = read_checkpoint(source, trust) if isinstance(source, (str, Path)) else source
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(f'a checkpoint is a dict of tensors; got {type(checkpoint).__name__}')
    for wrapper in WRAPPERS:
        if isinstance(checkpoint.get(wrapper), Mapping):
            checkpoint = checkpoint[wrapper]
            break
    weights = {
        name.removeprefix('module.'): value
        for name, value in checkpoint.items()
        if isinstance(name, str) and isinstance(value, Tensor) and not name.endswith(COMPUTED)
    }
    if not weights:
        found = ', '.join(map(str, list(checkpoint)[:8])) or 'nothing'
        raise CheckpointError(f'the checkpoint holds no weights: looked under {", ".join(WRAPPERS)}; found {found}')
    return weights
