"""Layer-wise learning rates for fine-tuning: what lies nearer to the picture learns more slowly."""

from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmsoft.registry import OPTIM_WRAPPER_CONSTRUCTORS
from mmsoft.versions import require


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class LayerDecay(DefaultOptimWrapperConstructor):
    """MMEngine's constructor with ``paramwise_cfg.layer_decay``: the lr of a layer over that of the layer above it.

    Neck and heads, and of a backbone what follows its layers, norms of maps included, have the lr of the config, as in
    BEiT and OpenMMLab; timm counts the last norm to the last layer.
    """

    def add_params(self, params: list[dict], module: nn.Module, prefix: str = '', is_dcn_module: Any = None) -> None:
        super().add_params(params, module, prefix, is_dcn_module)
        if prefix:
            return  # the call for the whole model comes last
        scales = layer_scales(module, self.paramwise_cfg['layer_decay'])
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        for group in params:
            (parameter,) = group['params']
            scale = scales.get(names[id(parameter)], 1.0)
            group['lr'] = group.get('lr', self.base_lr) * scale


def layer_scales(model: nn.Module, decay: float) -> dict[str, float]:
    """Names of the backbone's parameters -> the share of the lr that they get."""
    check_decay(decay)
    require('timm')
    from timm.models import group_parameters

    backbone = getattr(model, 'backbone', None)
    if not hasattr(backbone, 'group_matcher'):
        raise ValueError(
            f'layer_decay needs a backbone that tells its layers by group_matcher, as all of ours do; '
            f'{type(model).__name__} has {type(backbone).__name__}'
        )
    layers = group_parameters(backbone, backbone.group_matcher(coarse=False), reverse=True)
    last = max(layers.values())
    last += any('blocks.' in name for name, layer in layers.items() if layer == last)  # heads are a layer, too
    return {
        f'backbone.{name}': 1.0 if name.startswith('norm.') else decay ** (last - layer)
        for name, layer in layers.items()
    }


def check_decay(decay: float) -> None:
    if isinstance(decay, bool) or not isinstance(decay, (int, float)) or not 0 < decay <= 1:
        raise ValueError(f'layer_decay must be above 0 and at most 1; got {decay!r}')


def use_layer_decay(optim_wrapper: dict, decay: float) -> None:
    """Change the config's part in place."""
    other = optim_wrapper.get('constructor', 'DefaultOptimWrapperConstructor')
    if other not in ('DefaultOptimWrapperConstructor', 'mmsoft.LayerDecay'):
        raise ValueError(f'--layer-decay: the config has the constructor {other!r}, which sets learning rates itself')
    paramwise = optim_wrapper.get('paramwise_cfg') or {}
    optim_wrapper.update(constructor='mmsoft.LayerDecay', paramwise_cfg=dict(paramwise, layer_decay=decay))
