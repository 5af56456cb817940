"""Reading checkpoint files: tensors only, no code from the file is ever run."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from mmsoft.versions import StackError, require

from .messages import CheckpointError
from .sources import locate

# Buffers that a model computes from its own sizes.
COMPUTED = ('relative_position_index', 'attn_mask')
# With the counters, which say nothing of a model.
IGNORED = (*COMPUTED, 'num_batches_tracked')
EMA_KEY = 'state_dict_ema'  # averaged weights, as timm calls them
# Where weights sit in a checkpoint, the preferred place first; the dict itself comes last.
WRAPPERS = (EMA_KEY, 'state_dict', 'model')
_STORAGES = {name for name in vars(torch) if name.endswith('Storage') and name[0].isupper()}
_DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
# What pickles of weights are made of.
_ALLOWED = {
    'collections': {'OrderedDict', 'defaultdict', 'Counter'},
    'builtins': {'set', 'frozenset', 'slice', 'dict', 'list', 'int', 'float', 'bytearray'},
    '_codecs': {'encode'},
    'torch': {'Size', 'device', 'Tensor'} | _DTYPES | _STORAGES,
    'torch._utils': {'_rebuild_tensor', '_rebuild_tensor_v2', '_rebuild_parameter'},
    'torch.nn.parameter': {'Parameter'},
    'torch.storage': {'UntypedStorage', 'TypedStorage'},
    'numpy': {'ndarray', 'dtype'},
    'numpy.core.multiarray': {'_reconstruct', 'scalar'},
    'numpy._core.multiarray': {'_reconstruct', 'scalar'},
}
# What trainers leave beside the weights: read as an empty object, never constructed.
_SKIPPED = {
    ('mmengine.logging.history_buffer', 'HistoryBuffer'),
    ('builtins', 'getattr'),  # a history buffer's methods; an attribute of a skipped class is skipped too
    ('argparse', 'Namespace'),
    ('types', 'SimpleNamespace'),
    ('yacs.config', 'CfgNode'),
    # Python 3.13 alone has the second module
    *((module, kind) for module in ('pathlib', 'pathlib._local') for kind in ('Path', 'PosixPath', 'WindowsPath')),
}


class _Skipped(dict):
    """Stands for a foreign object; takes any arguments and any state."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        return


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        module = {'__builtin__': 'builtins'}.get(module, module)  # as old pickle protocols call it
        if (module, name) in _SKIPPED:
            return _Skipped
        if name in _ALLOWED.get(module, ()):
            return super().find_class(module, name)
        raise CheckpointError(f'it holds {module}.{name}, which could run code')


_tensors_only = SimpleNamespace(
    Unpickler=_Unpickler,
    load=lambda file, **options: _Unpickler(file, **options).load(),
    __name__='mmsoft tensors only',
)


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
        if zipfile.is_zipfile(path) and any(n.endswith('/constants.pkl') for n in zipfile.ZipFile(path).namelist()):
            raise CheckpointError('it is a TorchScript archive, which holds code')
        return torch.load(path, map_location='cpu', pickle_module=_tensors_only, weights_only=False)
    except CheckpointError as error:
        raise CheckpointError(
            f'checkpoint {str(path)!r} is refused: {error}; save its state_dict alone and load that, '
            'or, if you trust who made it, read it with --trust-checkpoint (in Python: trust=True)'
        ) from error
    except StackError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader say
        raise CheckpointError(f'checkpoint {str(path)!r} cannot be read: {error}; is the file complete?') from error


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
