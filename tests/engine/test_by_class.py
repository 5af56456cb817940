"""Values by class: of boxes and masks apart, and of labels."""

import json

import numpy as np
import pytest
import torch
from mmdet.evaluation import CocoMetric
from mmseg.evaluation import IoUMetric

from mmsoft.engine.by_class import keep_classes

BOX = [10.0, 10.0, 20.0, 20.0]  # x, y, width, height


def square(x, side):
    from pycocotools import mask

    picture = np.zeros((64, 64), np.uint8, order='F')
    picture[10 : 10 + side, x : x + side] = 1
    return mask.encode(picture)


@pytest.fixture
def coco(tmp_path):
    """Two classes with an object each: of 'cat' the box fits and the mask does not, of 'dog' the other way round."""
    polygon = [[10, 10, 30, 10, 30, 30, 10, 30]]
    objects = [
        dict(id=n, image_id=1, category_id=n, bbox=BOX, area=400, iscrowd=0, segmentation=polygon) for n in (1, 2)
    ]
    content = dict(
        images=[dict(id=1, file_name='a.png', width=64, height=64)],
        categories=[dict(id=1, name='cat'), dict(id=2, name='dog')],
        annotations=objects,
    )
    (tmp_path / 'a.json').write_text(json.dumps(content))
    metric = CocoMetric(ann_file=str(tmp_path / 'a.json'), metric=['bbox', 'segm'], classwise=True)
    metric.dataset_meta = dict(classes=('cat', 'dog'))
    predicted = dict(
        img_id=1,
        bboxes=np.array([[10, 10, 30, 30], [40, 10, 60, 30]], np.float32),
        scores=np.array([0.9, 0.8]),
        labels=np.array([0, 1]),
        masks=[square(40, 20), square(10, 20)],
        mask_scores=np.array([0.9, 0.8]),
    )
    metric.results = [(dict(img_id=1, width=64, height=64), predicted)]
    return metric


def test_boxes_and_masks_have_values_of_their_own(coco):
    keep_classes(coco)
    found = coco.evaluate(size=1)
    by_class = {name: value for name, value in found.items() if 'precision' in name}
    assert by_class == {
        'coco/bbox_cat_precision': 1.0,
        'coco/bbox_dog_precision': 0.0,
        'coco/segm_cat_precision': 0.0,
        'coco/segm_dog_precision': 1.0,
    }
    assert (found['coco/bbox_mAP'], found['coco/segm_mAP']) == (0.5, 0.5)
    assert coco.metrics == ['bbox', 'segm']


def test_segmentors_have_values_by_class():
    metric = IoUMetric(iou_metrics=['mIoU', 'mDice'])
    metric.dataset_meta = dict(classes=('road', 'sky', 'sea'))
    found, label = torch.tensor([[0, 0], [0, 1]]), torch.tensor([[0, 0], [1, 1]])
    metric.results = [metric.intersect_and_union(found, label, 3, 255)]
    plain = metric.compute_metrics(metric.results)
    keep_classes(metric)
    values = metric.evaluate(size=1)
    assert {name: values[name] for name in plain} == plain
    assert (values['IoU_road'], values['IoU_sky'], values['Dice_road']) == (66.67, 50.0, 80.0)
    assert np.isnan(values['IoU_sea'])  # neither there nor found
