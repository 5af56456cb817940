"""MMEngine's readers of files with ours in their place: what a config or an option names is read without running code.

They serve the whole process once one of our tools, or a function of this room, has called ``read_without_code``.
Importing mmsoft changes nothing.
"""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from mmengine.fileio import PickleHandler, YamlHandler, register_handler
from mmengine.runner import CheckpointLoader
from mmengine.runner.checkpoint import (
    _get_mmengine_home,
    get_deprecated_model_names,
    get_external_models,
    get_mmcls_models,
    get_torchvision_models,
)

from mmsoft.checkpoints import CheckpointError, read_checkpoint
from mmsoft.weights.pickles import PLAIN, Machine

# Beginnings of what MMEngine loads; the empty one is that of paths.
_PLAIN_SOURCES = ('', 'http://', 'https://')
_STORES = ('pavi://', r'(\S+\:)?s3://', r'(\S+\:)?petrel://')


def _openmmlab_models() -> dict[str, str]:
    found = get_external_models()
    return found | {old: found[new] for old, new in get_deprecated_model_names().items() if new in found}


_MODEL_LISTS: dict[str, Callable[[], Mapping[str, str]]] = {
    'torchvision': get_torchvision_models,
    'modelzoo': get_torchvision_models,
    'open-mmlab': _openmmlab_models,
    'openmmlab': _openmmlab_models,
    'mmcls': get_mmcls_models,
}


def read_without_code(trust: bool = False) -> None:
    """Let MMEngine read weights, pickles and YAML by our readers, in this process; ``trust`` permits any pickles."""

    def load_from_mmsoft(source: str, map_location: Any = None) -> Any:
        """Weights on the CPU, from where they are copied into the model."""
        return _load(source, trust)

    prefixes = [*_PLAIN_SOURCES, *_STORES, *(f'{name}://' for name in _MODEL_LISTS)]
    CheckpointLoader.register_scheme(prefixes, load_from_mmsoft, force=True)
    register_handler(['pkl', 'pickle'], trust=trust)(PlainPickles)
    register_handler(['yaml', 'yml'])(PlainYaml)


def _load(source: str, trust: bool) -> Any:
    scheme, found, name = source.partition('://')
    if not found or scheme in ('http', 'https'):
        return read_checkpoint(source, trust)
    if scheme not in _MODEL_LISTS:
        raise CheckpointError(f'weights at {source!r} cannot be read here: copy the file and give its path')
    known = _MODEL_LISTS[scheme]()
    if name not in known:
        raise CheckpointError(f'{source!r} names no known weights; {scheme}:// has {", ".join(sorted(known)[:5])}, ...')
    place = known[name] if '://' in known[name] else Path(_get_mmengine_home(), known[name])
    content = read_checkpoint(place, trust)
    if scheme == 'mmcls':  # of a classifier, the backbone
        weights = content.get('state_dict', content)
        start = 'backbone.'
        content = dict(state_dict={k.removeprefix(start): v for k, v in weights.items() if k.startswith(start)})
    return content


class PlainPickles(PickleHandler):
    """Lists of proposals, annotations and the like: plain data and arrays of numbers."""

    def __init__(self, trust: bool) -> None:
        self.trust = trust

    def load_from_fileobj(self, file: Any, **options: Any) -> Any:
        if self.trust:
            return pickle.load(file, **options)
        size = len(file.read())
        file.seek(0)
        try:
            return Machine(PLAIN, size).run(file)
        except CheckpointError as error:
            raise CheckpointError(
                f'a pickle that the config names is refused: {error}; save it as JSON, '
                'or, if you trust who made it, read it with --trust-checkpoint'
            ) from error
        except Exception as error:  # whatever a damaged file makes the decoder say
            raise CheckpointError(f'a pickle that the config names cannot be read: {str(error)[:300]}') from error


class PlainYaml(YamlHandler):
    """Without the tags that build objects."""

    def load_from_fileobj(self, file: Any, **options: Any) -> Any:
        return yaml.load(file, **{'Loader': yaml.SafeLoader, **options})
