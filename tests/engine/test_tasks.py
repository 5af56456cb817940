"""One record a task."""

import pytest
from mmengine.config import Config, ConfigDict
from mmengine.registry import MODELS, init_default_scope
from torch import nn

import mmsoft
from mmsoft.engine.config import load_config, without_pretrained
from mmsoft.engine.tasks import CLASSIFICATION, DETECTION, INSTANCE_SEGMENTATION, SEMANTIC_SEGMENTATION, TASKS, task_of

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
    with pytest.raises(ValueError, match='Identity has none of the heads decode_head, for labels'):
        SEMANTIC_SEGMENTATION.num_classes(nn.Identity())


def test_every_task_names_what_it_predicts_once():
    assert len({task.name for task in TASKS}) == len(TASKS)
    assert TASKS[-1].owns(ConfigDict())  # the last takes what is left
