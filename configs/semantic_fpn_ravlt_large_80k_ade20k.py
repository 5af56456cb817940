_base_ = ['_base_/semantic_fpn.py', '_base_/ade20k.py', '_base_/schedule_80k_ravlt.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        type='mmsoft.RAVLT',
        arch='large',
        drop_path_rate=0.55,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/ravlt_large.pth'),
    ),
    neck=dict(in_channels=[96, 192, 448, 640]),
    decode_head=dict(num_classes=150),
)
sync_bn = 'torch'  # also in the backbone
