"""timm entry points: after ``import mmsoft.timm``, ``timm.create_model('soft_pp_small')`` builds our classifier.

The models are the classifiers of :mod:`mmsoft.models`; their parameters are those of a backbone and a few more.
"""

from mmsoft.versions import require

require('timm')

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    is_model,
    model_entrypoint,
    register_model,
    register_notrace_function,
    register_notrace_module,
    resolve_pretrained_cfg,
)
from torch import Tensor, nn

from mmsoft.layers import PatchEmbed, PositionTable, PostNormBlock, PreNormBlock
from mmsoft.models import Checkpoint, Family
from mmsoft.models.family import for_each_family
from mmsoft.models.stage import Stage, to_channels_last
from mmsoft.weights import fit_weights

USUAL = dict(
    num_classes=1000,
    input_size=(3, 224, 224),
    pool_size=(7, 7),
    crop_pct=0.875,
    interpolation='bicubic',
    mean=IMAGENET_DEFAULT_MEAN,
    std=IMAGENET_DEFAULT_STD,
    classifier='head',
)

# model name -> classifier, and options of it
VARIANTS: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {}
default_cfgs = {}

# What looks at sizes stays whole when torch.fx traces.
for module in (Stage, PatchEmbed, PositionTable, PostNormBlock, PreNormBlock):
    register_notrace_module(module)
register_notrace_function(to_channels_last)


def _build(
    kind: type[nn.Module],
    in_chans: int = 3,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> nn.Module:
    """timm's names for three options; everything else is the classifier's own."""
    with torch.device(device) if device else nullcontext():
        model = kind(in_channels=in_chans, **options)
    return model.to(dtype)


def _as_ours(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The authors' names, those of a training and position tables of another size -> what the model loads."""
    weights = {name.removeprefix('backbone.'): value for name, value in Checkpoint.open(weights).weights.items()}
    # timm itself fits these to other numbers of classes and channels
    ends = ('head.weight', 'head.bias', f'{model.pretrained_cfg["first_conv"]}.weight')
    fitted, _ = fit_weights(model, weights, source='the pretrained weights', fresh=ends)
    return fitted | {name: weights[name] for name in ends if name in weights}


def _with_weights(name: str, pretrained_cfg: Any, overlay: dict | None) -> dict:
    """The overlay with a file's weights read as all of ours are; raise if no source is named."""
    cfg = resolve_pretrained_cfg(name, pretrained_cfg=pretrained_cfg, pretrained_cfg_overlay=overlay)
    if not (cfg.has_weights or cfg.state_dict):
        raise RuntimeError(
            f"{name} has no weights that can be fetched by name: give the authors' file or one of ours with "
            "pretrained=True, pretrained_cfg_overlay=dict(file='...'), or take pretrained=False"
        )
    if cfg.file and not cfg.state_dict and cfg.source != 'local-dir':
        return dict(overlay or {}, file=None, state_dict=Checkpoint.open(cfg.file).weights)
    return dict(overlay or {})


def _entry(name: str, maps: int | tuple[int, ...]) -> Callable[..., nn.Module]:
    """The function that timm calls; ``maps`` as the backbone gives them, the last one normalised."""
    classifier, own = VARIANTS[name]

    def create(
        pretrained: bool = False, pretrained_cfg: Any = None, pretrained_cfg_overlay: dict | None = None, **kwargs: Any
    ) -> nn.Module:
        if pretrained:
            pretrained_cfg_overlay = _with_weights(name, pretrained_cfg, pretrained_cfg_overlay)
        feature_cfg = dict(out_indices=maps, feature_cls='getter')
        if kwargs.get('feature_cls', 'getter') == 'getter':
            feature_cfg['norm'] = True
        return build_model_with_cfg(
            partial(_build, classifier),
            name,
            pretrained,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=pretrained_cfg_overlay,
            pretrained_filter_fn=_as_ours,
            feature_cfg=feature_cfg,
            **{**own, **kwargs},
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f'{classifier.__name__}({", ".join(f"{k}={v!r}" for k, v in own.items())}).'
    return register_model(create)


def _follow(family: Family) -> Callable[[], None]:
    """Names of a family's models for timm, each also a function of this module."""
    listed = {name: own for name, own in family.variants.items() if name not in family.unlisted}
    for name in listed:
        if is_model(name) and model_entrypoint(name).__module__ != __name__:
            raise ValueError(f'family {family.title!r}: timm has a model {name} already: choose other prefixes')
    cfgs = generate_default_cfgs({n: USUAL | family.timm_cfg(own['arch']) for n, own in listed.items()})

    def enter() -> None:
        default_cfgs.update(cfgs)
        for module in family.leaves:
            register_notrace_module(module)
        for name, own in listed.items():
            VARIANTS[name] = family.classifier, own
            globals()[name] = _entry(name, family.maps)

    return enter


for_each_family(_follow)
