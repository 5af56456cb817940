"""Child registries of MMEngine's: ``type='mmsoft.SOFT'`` builds from mmdet's and mmseg's configs."""

from mmsoft.versions import require

require('mmengine')

from mmengine.registry import MODELS as MMENGINE_MODELS
from mmengine.registry import Registry

MODELS = Registry('model', parent=MMENGINE_MODELS, scope='mmsoft', locations=['mmsoft.models.register'])
