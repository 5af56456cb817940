"""Linear-complexity attention backbones for dense vision."""

import importlib
from typing import TYPE_CHECKING, Any

from mmsoft import mmcv_ops
from mmsoft.files import shipped

if TYPE_CHECKING:  # what __getattr__ loads when it is first used
    from mmsoft import checkpoints as checkpoints
    from mmsoft import datasets as datasets
    from mmsoft import deploy as deploy
    from mmsoft import distillation as distillation
    from mmsoft import engine as engine
    from mmsoft import env as env
    from mmsoft import exporting as exporting
    from mmsoft import layers as layers
    from mmsoft import models as models
    from mmsoft import ops as ops
    from mmsoft import registry as registry
    from mmsoft import timm as timm
    from mmsoft import versions as versions
    from mmsoft import visualization as visualization
    from mmsoft import weights as weights
    from mmsoft.distillation import linearize as linearize
    from mmsoft.engine.predictor import Predictor as Predictor
    from mmsoft.models import *  # noqa: F403 (each family's names stand in its own file)

__version__ = '0.1.0'

# what is reached as mmsoft.<name>, besides every family's backbone and classifier
_MODELS = ('Family', 'register_attention', 'register_family')
_ROOMS = (
    'checkpoints',
    'datasets',
    'deploy',
    'distillation',
    'engine',
    'env',
    'exporting',
    'layers',
    'mmcv_ops',
    'models',
    'ops',
    'registry',
    'timm',
    'versions',
    'visualization',
    'weights',
)

mmcv_ops.activate()


def __getattr__(name: str) -> Any:
    """``mmsoft.SOFT`` and ``mmsoft.checkpoints`` load when they are first used, so that importing stays light."""
    if name in _ROOMS:
        return importlib.import_module(f'mmsoft.{name}')
    if name.startswith('__'):
        raise AttributeError(f'module mmsoft has no attribute {name!r}')
    if name == 'Predictor':
        return importlib.import_module('mmsoft.engine.predictor').Predictor
    if name == 'linearize':
        return importlib.import_module('mmsoft.distillation').linearize
    models = importlib.import_module('mmsoft.models')
    if name in _MODELS:
        return getattr(models, name)
    families = models.FAMILIES.values()
    found = {kind.__name__: kind for family in families for kind in (family.backbone, family.classifier)}
    if name not in found:
        raise AttributeError(
            f'module mmsoft has no attribute {name!r}; it has '
            f'{", ".join((*found, *_MODELS, "Predictor", "linearize", *_ROOMS))}'
        )
    return found[name]


def config_path(name: str) -> str:
    """A shipped config's path, for ``_base_ = __import__('mmsoft').config_path('retinanet_soft_pp_small_1x_coco')``."""
    folder = shipped('configs')
    path = folder / (name if name.endswith('.py') else f'{name}.py')
    if not path.is_file():
        known = ', '.join(sorted(file.stem for file in folder.glob('*.py')))
        raise FileNotFoundError(f'mmsoft has no config {name!r}; it has {known}')
    return str(path)
