_base_ = ['_base_/mask_rcnn.py', '_base_/coco_masks.py', '_base_/schedule_1x.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.InLineSwin',
        arch='base',
        drop_path_rate=0.5,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/inline_swin_base.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512, 1024]),
)
