"""Samples drawn on their images."""

import numpy as np
import torch
from mmdet.structures import DetDataSample
from mmengine.structures import InstanceData, PixelData

from mmsoft.visualization import draw_instances

IMAGE = np.zeros((64, 96, 3), np.uint8)


def sample(**maps):
    found = DetDataSample(gt_instances=InstanceData(bboxes=torch.tensor([[5.0, 5, 60, 60]]), labels=torch.tensor([1])))
    for name, labels in maps.items():
        setattr(found, name, PixelData(sem_seg=labels))
    return found


def test_maps_of_stuff_beside_boxes_are_left_out():
    """Of HTC, whose labels are COCO's ids: 156 is the sky, and 1 no dog."""
    meta = dict(classes=('cat', 'dog'), palette=[(255, 0, 0), (0, 255, 0)])
    boxes = draw_instances(IMAGE, sample(), meta, truth=True)
    assert boxes.any()
    for label in (1, 156):
        labels = torch.full((1, 64, 96), label)
        both = sample(gt_sem_seg=labels)
        assert np.array_equal(draw_instances(IMAGE, both, meta, truth=True), boxes)
        assert 'gt_sem_seg' in both
    panoptic = dict(meta, thing_classes=('cat',), stuff_classes=('dog',))
    assert not np.array_equal(draw_instances(IMAGE, sample(gt_sem_seg=labels * 0 + 1), panoptic, truth=True), boxes)
