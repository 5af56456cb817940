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
    register_model,
    register_notrace_function,
    register_notrace_module,
    resolve_pretrained_cfg,
)
from torch import Tensor, nn

from mmsoft.checkpoints import load
from mmsoft.checkpoints.loading import fit_weights
from mmsoft.layers import (
    CSwinBlock,
    PatchEmbed,
    PatchMerging,
    PositionTable,
    PostNormBlock,
    PreNormBlock,
)
from mmsoft.models import (
    ARCHS,
    CSWIN_ARCHS,
    DEIT_ARCHS,
    DEIT_SIZES,
    PVT_ARCHS,
    SWIN_ARCHS,
    InLineCSwinClassifier,
    InLineDeiTClassifier,
    InLinePVTClassifier,
    InLineSwinClassifier,
    SOFTClassifier,
)
from mmsoft.models.classifier import Classifier
from mmsoft.models.stage import Stage, to_channels_last

# model name -> classifier, and options of it
VARIANTS = {
    **{f'soft_{arch}': (SOFTClassifier, dict(arch=arch, attn='soft')) for arch in ARCHS if not arch.endswith('_v1')},
    **{f'soft_pp_{arch}': (SOFTClassifier, dict(arch=arch, attn='soft_pp')) for arch in ARCHS},
    **{f'inline_pvt_{arch}': (InLinePVTClassifier, dict(arch=arch)) for arch in PVT_ARCHS},
    **{f'inline_swin_{arch}': (InLineSwinClassifier, dict(arch=arch)) for arch in SWIN_ARCHS},
    **{f'inline_deit_{arch}': (InLineDeiTClassifier, dict(arch=arch)) for arch in DEIT_ARCHS},
    **{f'inline_cswin_{arch}': (InLineCSwinClassifier, dict(arch=arch)) for arch in CSWIN_ARCHS},
}


def _cfg(name: str) -> dict[str, Any]:
    """How a model is fed, and what its first and last layers are called."""
    classifier, options = VARIANTS[name]
    plain = classifier is InLineDeiTClassifier
    size = DEIT_SIZES[options['arch']] if plain else 224
    paper, first = 'arXiv:2412.06590', 'embed.proj' if plain else 'stages.0.embed.proj'
    if classifier is SOFTClassifier:
        paper = 'arXiv:2110.11945' if name.endswith('_v1') else 'arXiv:2207.03341'
        first = 'stages.0.embed.0.0'
    return dict(
        num_classes=1000,
        input_size=(3, size, size),
        pool_size=(size // 16,) * 2 if plain else (7, 7),
        crop_pct=0.875,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
        first_conv=first,
        classifier='head',
        license='apache-2.0',
        paper_ids=paper,
    )


default_cfgs = generate_default_cfgs({name: _cfg(name) for name in VARIANTS})

# What looks at sizes stays whole when torch.fx traces.
for module in (Stage, PatchEmbed, PatchMerging, PositionTable, PostNormBlock, PreNormBlock, CSwinBlock):
    register_notrace_module(module)
register_notrace_function(to_channels_last)


def _build(
    kind: type[Classifier],
    in_chans: int = 3,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
    **options: Any,
) -> Classifier:
    """timm's names for three options; everything else is the classifier's own."""
    with torch.device(device) if device else nullcontext():
        model = kind(in_channels=in_chans, **options)
    return model.to(dtype)


def _as_ours(weights: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The authors' names, those of a training and position tables of another size -> what the model loads."""
    weights = {name.removeprefix('backbone.'): value for name, value in load(weights).items()}
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
        return dict(overlay or {}, file=None, state_dict=load(cfg.file))
    return dict(overlay or {})


def _entry(name: str) -> Callable[..., nn.Module]:
    classifier, own = VARIANTS[name]
    # maps as the backbone gives them: all four, the last one normalised; of a plain transformer the last three
    maps = 3 if classifier is InLineDeiTClassifier else (0, 1, 2, 3)

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


globals().update({name: _entry(name) for name in VARIANTS})
