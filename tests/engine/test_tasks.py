"""One record a task."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.model import BaseModel
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import BaseDataElement
from torch import nn

import mmsoft
from mmsoft.engine import tasks
from mmsoft.engine.complexity import count_parts
from mmsoft.engine.config import load_config, without_pretrained
from mmsoft.engine.predict import predict
from mmsoft.engine.tasks import (
    CLASSIFICATION,
    DETECTION,
    INSTANCE_SEGMENTATION,
    PANOPTIC_SEGMENTATION,
    SEMANTIC_SEGMENTATION,
    TASKS,
    Task,
    task_of,
)
from mmsoft.engine.writers import JsonWriter

SHIPPED = {
    'soft_pp_tiny_300e_in1k': (CLASSIFICATION, 1000, None, (224, 224)),
    'upernet_soft_pp_tiny_160k_ade20k': (SEMANTIC_SEGMENTATION, 150, 150, (512, 512)),
    'mask_rcnn_soft_pp_tiny_1x_coco': (INSTANCE_SEGMENTATION, 80, None, (800, 1333)),
    'retinanet_soft_pp_tiny_1x_coco': (DETECTION, 80, None, (800, 1333)),
}


@pytest.mark.parametrize('name', SHIPPED)
def test_a_task_is_known_by_its_config(name):
    task, classes, labels, shape = SHIPPED[name]
    cfg = load_config(mmsoft.config_path(name))
    assert task_of(cfg) is task
    assert (task.label_count(cfg), task.input_shape(cfg)) == (labels, shape)
    init_default_scope(cfg.default_scope)
    without_pretrained(cfg)
    assert task.num_classes(MODELS.build(cfg.model)) == classes


def test_another_library_s_models_have_tasks_too():
    for model, task in (
        (dict(type='mmdet.FasterRCNN', roi_head=dict(type='StandardRoIHead', bbox_head=dict())), DETECTION),
        (dict(type='mmdet.SOLO', mask_head=dict(type='SOLOHead')), INSTANCE_SEGMENTATION),
        (dict(type='mmdet.Mask2Former', panoptic_head=dict(), panoptic_fusion_head=dict()), PANOPTIC_SEGMENTATION),
        (dict(type='mmdet.DINO', bbox_head=dict(type='DINOHead')), DETECTION),
        (
            dict(type='CascadeEncoderDecoder', decode_head=[dict(num_classes=3), dict(num_classes=19)]),
            SEMANTIC_SEGMENTATION,
        ),
    ):
        cfg = Config(dict(model=model))
        assert task_of(cfg) is task
    assert SEMANTIC_SEGMENTATION.label_count(cfg) == 19
    cascade = nn.Module()
    cascade.roi_head = nn.Module()
    cascade.roi_head.bbox_head = nn.ModuleList([nn.Identity(), nn.Identity()])
    cascade.roi_head.bbox_head[-1].num_classes = 7
    assert INSTANCE_SEGMENTATION.num_classes(cascade) == 7
    inner = nn.Module()
    inner.backbone, inner.student = nn.Identity(), nn.Module()
    inner.backbone.num_classes, inner.student.any_head = 1000, nn.Identity()
    inner.student.any_head.num_classes = 5
    assert DETECTION.num_classes(inner) == 5
    with pytest.raises(ValueError, match='Identity has none of the heads decode_head, for labels'):
        SEMANTIC_SEGMENTATION.num_classes(nn.Identity())


def test_every_task_names_what_it_predicts_once():
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert TASKS[-1].owns(ConfigDict())  # the last takes what is left


@MODELS.register_module(force=True)
class Tagger(BaseModel):
    """Which of two tags apply to a picture: a task of somebody's own."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 2)
        self.head.num_classes = 2

    def forward(self, inputs, data_samples=None, mode='tensor'):
        found = self.head(torch.stack(list(inputs)).float().mean((2, 3)))
        if mode == 'tensor':
            return found
        for sample, tags in zip(data_samples, found > 0, strict=True):
            sample.tags = tags
        return data_samples


class TagWriter(JsonWriter):
    def entries(self, sample):
        yield dict(tags=[name for name, tag in zip(self.classes, sample.tags.tolist(), strict=True) if tag])


def packed(data):
    sample = BaseDataElement(metainfo=dict(img_path=data['img_path']))
    return dict(inputs=torch.from_numpy(data['img']).permute(2, 0, 1), data_samples=sample)


def test_a_task_of_ones_own_is_a_record(tmp_path, monkeypatch):
    tagging = Task(
        'tags',
        owns=lambda model: model.get('type') == 'Tagger',
        heads=('head',),
        demo_batch=4,
        demo_epochs=1,
        draw=lambda image, sample, meta, score_thr=0.3, truth=False: 255 - image,
        writer=TagWriter,
        steps=lambda cfg: (lambda data: dict(data, img=cv2.imread(data['img_path'])), packed),
        input_shape=lambda cfg: (8, 12),
        run=tasks.run_whole,
    )
    monkeypatch.setattr(tasks, 'TASKS', (tagging, *TASKS))
    cfg = Config(dict(model=dict(type='Tagger')))
    weights = {'head.weight': torch.tensor([[1.0, 0, 0], [0, 0, 1]]), 'head.bias': torch.full((2,), -99.0)}
    meta = dict(dataset_meta=dict(classes=('blue', 'red')))
    torch.save(dict(state_dict=weights, meta=meta), tmp_path / 'w.pth')
    for name, colour in (('a', (200, 0, 0)), ('b', (200, 0, 200))):
        cv2.imwrite(str(tmp_path / f'{name}.png'), np.full((8, 12, 3), colour, np.uint8))
    predict(cfg, str(tmp_path / 'w.pth'), [str(tmp_path / '*.png')], tmp_path / 'out', 'cpu')
    entries = json.loads((tmp_path / 'out' / 'results.json').read_text())
    assert [(entry['file_name'], entry['tags']) for entry in entries] == [
        ('a.png', ['blue']),
        ('b.png', ['blue', 'red']),
    ]
    assert cv2.imread(str(tmp_path / 'out' / 'drawn' / 'a.png'))[0, 0].tolist() == [55, 255, 255]
    parts, remarks = count_parts(cfg)
    assert remarks[0] == 'one image of 8 x 12'
    assert parts[-1][1:] == (8, 6)
