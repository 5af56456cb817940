_base_ = ['_base_/upernet.py', '_base_/ade20k.py', '_base_/schedule_160k_mila.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        type='mmsoft.MILA',
        arch='base',
        drop_path_rate=0.5,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/mila_base.pth'),
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=150),
    auxiliary_head=dict(in_channels=384, num_classes=150),
)
