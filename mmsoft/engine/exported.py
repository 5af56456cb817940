"""A file of ``mmsoft export`` in the place of a checkpoint: the same drawings and results."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import TRANSFORMS
from mmengine.structures import InstanceData, PixelData

from mmsoft.datasets.class_folders import ClassSample
from mmsoft.deploy import Result, load

from .tasks import CLASSIFICATION, DETECTION, INSTANCE_SEGMENTATION, SEMANTIC_SEGMENTATION

SUFFIXES = ('.onnx',)
TASKS = {task.name: task for task in (CLASSIFICATION, SEMANTIC_SEGMENTATION, DETECTION, INSTANCE_SEGMENTATION)}


class ExportedPredictor:
    """As :class:`Predictor`, as far as ``predict`` asks, run by ``onnxruntime`` or ``openvino``."""

    def __init__(self, file: str | Path, runtime: str = 'onnxruntime') -> None:
        self.model = load(file, runtime)
        about = self.model.about
        self.task = TASKS[about['task']]
        self.cfg = Config(dict(test_dataloader=dict(dataset=about['dataset'])))
        self.meta = dict(classes=tuple(about['classes']), palette=about['palette'])
        color = 'color' if about['preprocessing']['exif'] else 'color_ignore_orientation'
        self.load = TRANSFORMS.build(dict(type='mmcv.LoadImageFromFile', color_type=color))

    def prepare(self, image: np.ndarray, name: str, number: int = 0) -> dict[str, Any]:
        """What ``predict`` takes for a BGR image (H, W, 3)."""
        return dict(image=image, name=name)

    def predict(self, batch: Sequence[dict[str, Any]]) -> list[Any]:
        """OpenMMLab's samples."""
        return [self._sample(self.model(data['image']), data['name']) for data in batch]

    def _sample(self, result: Result, name: str) -> Any:
        if self.task is CLASSIFICATION:
            scores = torch.empty(len(result.scores))
            scores[torch.from_numpy(result.labels)] = torch.from_numpy(result.scores)
            sample = ClassSample(metainfo=dict(img_path=name))
            sample.pred_scores = scores
            return sample
        if self.task is SEMANTIC_SEGMENTATION:
            from mmseg.structures import SegDataSample

            return SegDataSample(pred_sem_seg=PixelData(data=torch.from_numpy(result.label_map)[None]))
        from mmdet.structures import DetDataSample

        found = dict(bboxes=result.boxes, scores=result.scores, labels=result.labels, masks=result.masks)
        found = {key: torch.from_numpy(value) for key, value in found.items() if value is not None}
        sample = DetDataSample(metainfo=dict(img_path=name, ori_shape=result.size))
        sample.pred_instances = InstanceData(**found)
        return sample
