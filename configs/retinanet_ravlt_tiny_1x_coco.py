_base_ = ['_base_/retinanet.py', '_base_/coco_boxes.py', '_base_/schedule_1x_ravlt.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.RAVLT',
        arch='tiny',
        drop_path_rate=0.1,  # as in pretraining
        # Strides 8, 16, 32: RetinaNet reads no others, and a norm of stride 4 would get no gradient.
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/ravlt_tiny.pth'),
    ),
    neck=dict(in_channels=[128, 256, 512], start_level=0),
)
sync_bn = 'torch'  # also in the backbone
