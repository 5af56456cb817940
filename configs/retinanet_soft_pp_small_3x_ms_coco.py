_base_ = ['_base_/retinanet.py', '_base_/coco_boxes_ms.py', '_base_/schedule_3x.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.SOFT', arch='small', init_cfg=dict(type='Pretrained', checkpoint='pretrained/soft_pp_small.pth')
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
