"""Detectors and segmentors on pictures of another size: everything in pixels follows."""

from collections.abc import Sequence
from typing import Any

from mmengine.config import Config

from .parts import LOADERS, kind_of, pipelines, walk_dicts
from .tasks import SEMANTIC_SEGMENTATION, pipeline_shape, task_of

CENTRES = 'RandomCenterCropPad'  # of CornerNet and CenterNet
# What steps of pipelines call sizes in pixels; mmseg's crops, and those around centres, have the height first.
WIDTH_FIRST = ('scale', 'scales', 'img_scale', 'size', 'crop_size', 'border')
HEIGHT_FIRST = ('size', 'random_size_range', 'crop_size', 'stride')  # of preprocessors, and of windows in testing


def resize_pictures(cfg: Config, height: int, width: int) -> None:
    """Let the model learn from height x width: all sizes of pipelines, padding and windows change by that factor.

    What it learns from is the crop of the training pipeline or, where there is none, what the test pipeline resizes to.
    """
    mmseg = task_of(cfg) is SEMANTIC_SEGMENTATION
    try:
        old = _crop(cfg, mmseg) or pipeline_shape(cfg)
    except ValueError:
        raise ValueError(
            '--img-size: no pipeline of the config tells a size of pictures: leave it out, or change the pipelines'
        ) from None
    factors = height / old[0], width / old[1]
    steps = [step for name in LOADERS if cfg.get(name) for step in _steps(cfg[name].dataset)]
    steps += [step for hook in cfg.get('custom_hooks') or () for step in walk_dicts(hook.get('switch_pipeline'))]
    for step in {id(step): step for step in steps}.values():
        for key in WIDTH_FIRST:
            first = key == 'crop_size' and (mmseg or kind_of(step) == CENTRES)
            _scale(step, key, factors if first else factors[::-1], step.get('keep_ratio') and old[1] >= old[0])
    for part in (*walk_dicts(cfg.model.get('data_preprocessor')), *walk_dicts(cfg.model.get('test_cfg'))):
        for key in HEIGHT_FIRST:
            _scale(part, key, factors)


def _steps(dataset: Any) -> list:
    return [step for pipeline in pipelines(dataset) for step in walk_dicts(pipeline)]


def _crop(cfg: Config, mmseg: bool) -> tuple[int, int] | None:
    """(height, width) of the last crop of fixed size in training."""
    for step in reversed(_steps((cfg.get('train_dataloader') or {}).get('dataset') or {})):
        size = step.get('crop_size')
        if kind_of(step) == CENTRES and _is_pair(size):
            return tuple(size)
        if kind_of(step) == 'RandomCrop' and _is_pair(size) and step.get('crop_type', 'absolute') == 'absolute':
            return tuple(size) if mmseg else tuple(size[::-1])
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(type(side) is int for side in value)


def _scale(part: Any, key: str, factors: Sequence[float], wide: bool = False) -> None:
    """A size in pixels, or a list of sizes, by these factors; shares and single numbers stay.

    ``wide``: of a long and a short side in any order, as (480, 1333), of which the long one is the width.
    """
    value = part.get(key)
    if _is_pair(value):
        part[key] = _scaled(value, factors, wide)
    elif isinstance(value, (list, tuple)) and value and all(map(_is_pair, value)):
        part[key] = [_scaled(pair, factors, wide) for pair in value]


def _scaled(pair: Sequence[int], factors: Sequence[float], wide: bool) -> tuple[int, ...]:
    factors = factors[::-1] if wide and pair[0] < pair[1] else factors
    return tuple(round(side * factor) or 1 for side, factor in zip(pair, factors, strict=True))
