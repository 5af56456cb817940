_base_ = ['_base_/upernet.py', '_base_/ade20k.py', '_base_/schedule_160k_inline.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        type='mmsoft.InLineSwin',
        arch='base',
        drop_path_rate=0.5,  # as in pretraining
        init_cfg=dict(type='Pretrained', checkpoint='pretrained/inline_swin_base.pth'),
    ),
    decode_head=dict(in_channels=[128, 256, 512, 1024], num_classes=150),
    auxiliary_head=dict(in_channels=512, num_classes=150),
)
