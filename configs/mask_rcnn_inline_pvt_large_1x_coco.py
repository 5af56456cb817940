_base_ = ['_base_/mask_rcnn.py', '_base_/coco_masks.py', '_base_/schedule_1x.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.InLinePVT',
        arch='large',
        drop_path_rate=0.3,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/inline_pvt_large.pth'),
    ),
    neck=dict(in_channels=[64, 128, 320, 512]),
)
