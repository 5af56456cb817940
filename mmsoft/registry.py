"""Child registries of MMEngine's: ``type='mmsoft.SOFT'`` builds from mmdet's and mmseg's configs."""

from mmsoft.versions import require

require('mmengine')

from mmengine import registry as mmengine
from mmengine.registry import Registry


def _child(name: str, parent: Registry, *locations: str) -> Registry:
    """A registry of ours that MMEngine fills, by importing ``locations``, when one of its types is first built."""
    return Registry(name, parent=parent, scope='mmsoft', locations=list(locations))


MODELS = _child(
    'model', mmengine.MODELS, 'mmsoft.models.register', 'mmsoft.engine.classification', 'mmsoft.distillation.teaching'
)
DATASETS = _child(
    'dataset',
    mmengine.DATASETS,
    'mmsoft.datasets.seeding',
    'mmsoft.datasets.class_folders',
    'mmsoft.distillation.pictures',
)
DATA_SAMPLERS = _child('data sampler', mmengine.DATA_SAMPLERS, 'mmsoft.datasets.seeding')
TRANSFORMS = _child('transform', mmengine.TRANSFORMS, 'mmsoft.datasets.reading', 'mmsoft.distillation.pictures')
METRICS = _child('metric', mmengine.METRICS, 'mmsoft.engine.classification')
HOOKS = _child(
    'hook',
    mmengine.HOOKS,
    'mmsoft.engine.hooks',
    'mmsoft.engine.logs',
    'mmsoft.engine.classification',
    'mmsoft.engine.saving',
)
OPTIM_WRAPPERS = _child('optim_wrapper', mmengine.OPTIM_WRAPPERS, 'mmsoft.engine.runner')
OPTIM_WRAPPER_CONSTRUCTORS = _child(
    'optimizer wrapper constructor', mmengine.OPTIM_WRAPPER_CONSTRUCTORS, 'mmsoft.engine.layer_decay'
)
