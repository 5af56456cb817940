_base_ = ['_base_/upernet.py', '_base_/cityscapes.py', '_base_/schedule_40k.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(768, 768)),
    backbone=dict(
        type='mmsoft.SOFT', arch='small', init_cfg=dict(type='Pretrained', checkpoint='pretrained/soft_pp_small.pth')
    ),
    decode_head=dict(in_channels=[96, 192, 384, 768], num_classes=19),
    auxiliary_head=dict(in_channels=384, num_classes=19),
)
