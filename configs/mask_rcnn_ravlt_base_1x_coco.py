_base_ = ['_base_/mask_rcnn.py', '_base_/coco_masks.py', '_base_/schedule_1x_mila.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.RAVLT',
        arch='base',
        drop_path_rate=0.4,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/ravlt_base.pth'),
    ),
    neck=dict(in_channels=[96, 192, 384, 512]),
)
sync_bn = 'torch'  # also in the backbone
