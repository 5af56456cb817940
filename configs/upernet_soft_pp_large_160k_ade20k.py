_base_ = ['_base_/upernet.py', '_base_/ade20k.py', '_base_/schedule_160k.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(512, 512)),
    backbone=dict(
        type='mmsoft.SOFT', arch='large', init_cfg=dict(type='Pretrained', checkpoint='pretrained/soft_pp_large.pth')
    ),
    decode_head=dict(in_channels=[128, 256, 512, 1024], num_classes=150),
    auxiliary_head=dict(in_channels=512, num_classes=150),
)
