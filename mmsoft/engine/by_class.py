"""Metrics that keep what they find of each class: mmdet's overwrites boxes with masks, mmseg's only prints a table."""

from functools import partial
from typing import Any

import numpy as np
from mmengine.evaluator import BaseMetric

from .parts import kind_of


def keep_classes(metric: BaseMetric) -> None:
    """Let it give values by class as well: ``bbox_<class>_precision``, ``segm_<class>_precision``, ``IoU_<class>``."""
    compute = {'CocoMetric': _coco, 'IoUMetric': _iou}.get(kind_of(type(metric)))
    if compute:
        metric.compute_metrics = partial(compute, metric)


def _coco(metric: Any, results: list) -> dict[str, float]:
    """One kind of result after the other, each under its own name."""
    kinds, found = metric.metrics, {}
    try:
        for kind in kinds:
            metric.metrics = [kind]
            for name, value in type(metric).compute_metrics(metric, results).items():
                found[f'{kind}_{name}' if name.endswith('_precision') else name] = value
    finally:
        metric.metrics = kinds
    return found


def _iou(metric: Any, results: list) -> dict[str, float]:
    """In per cent, rounded as in mmseg's table."""
    seen = {}

    def remember(*areas: Any) -> dict:
        values = type(metric).total_area_to_metrics(*areas)
        seen.update(values)
        return values

    metric.total_area_to_metrics = remember
    try:
        found = type(metric).compute_metrics(metric, results)
    finally:
        del metric.total_area_to_metrics
    seen.pop('aAcc', None)
    for name, values in seen.items():
        percent = (100 * np.asarray(values, np.float64)).round(2).tolist()
        found |= {
            f'{name}_{label}': value for label, value in zip(metric.dataset_meta['classes'], percent, strict=True)
        }
    return found
