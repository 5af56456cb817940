_base_ = ['_base_/mask_rcnn.py', '_base_/coco_masks.py', '_base_/schedule_1x.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.InLineSwin',
        arch='small',
        drop_path_rate=0.3,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/inline_swin_small.pth'),
    ),
    neck=dict(in_channels=[96, 192, 384, 768]),
)
