_base_ = ['_base_/mask_rcnn.py', '_base_/coco_masks_crop.py', '_base_/schedule_1x_mila.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.MILA',
        arch='tiny',
        drop_path_rate=0.1,  # of all sizes
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/mila_tiny.pth'),
    ),
    neck=dict(in_channels=[64, 128, 256, 512]),
)
