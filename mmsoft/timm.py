"""timm entry points: after ``import mmsoft.timm``, ``timm.create_model('soft_pp_small')`` builds our classifier.

The models are :class:`mmsoft.models.SOFTClassifier`; their parameters are those of the backbone and four more.
"""

from mmsoft.versions import require

require('timm')

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    register_model,
    register_notrace_function,
    register_notrace_module,
    resolve_pretrained_cfg,
)
from torch import Tensor, nn

from mmsoft.checkpoints import load
from mmsoft.layers import PositionTable, PostNormBlock, PreNormBlock, resize_table
from mmsoft.models import ARCHS, SOFTClassifier
from mmsoft.models.stage import Stage, to_channels_last

# model name -> options of the classifier
VARIANTS = {
    **{f'soft_{arch}': dict(arch=arch, attn='soft') for arch in ARCHS if not arch.endswith('_v1')},
    **{f'soft_pp_{arch}': dict(arch=arch, attn='soft_pp') for arch in ARCHS},
}
default_cfgs = generate_default_cfgs(
    {
        name: dict(
            num_classes=1000,
            input_size=(3, 224, 224),
            pool_size=(7, 7),
            crop_pct=0.875,
            interpolation='bicubic',
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
            first_conv='stages.0.embed.0.0',
            classifier='head',
            license='apache-2.0',
            paper_ids='arXiv:2110.11945' if name.endswith('_v1') else 'arXiv:2207.03341',
        )
        for name in VARIANTS
    }
)

# What looks at sizes stays whole when torch.fx traces.
for module in (Stage, PositionTable, PostNormBlock, PreNormBlock):
    register_notrace_module(module)
register_notrace_function(to_channels_last)


def _build(
    in_chans: int = 3,
    device: 'torch.device | str | None' = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> SOFTClassifier:
    """timm's names for three options; everything else is the classifier's own."""
    with torch.device(device) if device else nullcontext():
        model = SOFTClassifier(in_channels=in_chans, **options)
    return model.to(dtype)


def _as_ours(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The authors' names, those of a training and position tables of another size -> what the model loads."""
    weights = {name.removeprefix('backbone.'): value for name, value in load(weights).items()}
    tables = {name: value.shape[1:3] for name, value in model.state_dict().items() if name.endswith('position.table')}
    return {name: resize_table(value, tables[name]) if name in tables else value for name, value in weights.items()}


def _with_weights(name: str, pretrained_cfg: Any, overlay: dict | None) -> dict:
    """The overlay with a file's weights read as all of ours are; raise if no source is named."""
    cfg = resolve_pretrained_cfg(name, pretrained_cfg=pretrained_cfg, pretrained_cfg_overlay=overlay)
    if not (cfg.has_weights or cfg.state_dict):
        raise RuntimeError(
            f"{name} has no weights that can be fetched by name: give the authors' file or one of ours with "
            "pretrained=True, pretrained_cfg_overlay=dict(file='...'), or take pretrained=False"
        )
    if cfg.file and not cfg.state_dict and cfg.source != 'local-dir':
        return dict(overlay or {}, file=None, state_dict=load(cfg.file))
    return dict(overlay or {})


def _entry(name: str) -> Callable[..., nn.Module]:
    def create(
        pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: dict | None = None, **kwargs: Any
    ) -> nn.Module:
        if pretrained:
            pretrained_cfg_overlay = _with_weights(name, pretrained_cfg, pretrained_cfg_overlay)
        # maps as the backbone gives them: all four, the last one normalised
        feature_cfg = dict(out_indices=(0, 1, 2, 3), feature_cls='getter')
        if kwargs.get('feature_cls', 'getter') == 'getter':
            feature_cfg['norm'] = True
        return build_model_with_cfg(
            _build,
            name,
            pretrained,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=pretrained_cfg_overlay,
            pretrained_filter_fn=_as_ours,
            feature_cfg=feature_cfg,
            **{**VARIANTS[name], **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'SOFTClassifier({", ".join(f"{k}={v!r}" for k, v in VARIANTS[name].items())}).'
    return register_model(create)


globals().update({name: _entry(name) for name in VARIANTS})
