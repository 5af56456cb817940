_base_ = ['_base_/retinanet.py', '_base_/coco_boxes.py', '_base_/schedule_1x.py', '_base_/runtime_det.py']

model = dict(
    backbone=dict(
        type='mmsoft.InLineDeiT',
        arch='tiny',
        drop_path_rate=0.1,  # as in pretraining
        # Strides 8, 16, 32. The level of stride 4 is not built: RetinaNet reads none, and what is built without being
        # read gets no gradient, for which training in several processes stops.
        out_indices=(1, 2, 3),
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/inline_deit_tiny.pth'),
    ),
    neck=dict(in_channels=[96, 192, 192], start_level=0),
)
