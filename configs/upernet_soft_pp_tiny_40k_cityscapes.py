_base_ = ['_base_/upernet.py', '_base_/cityscapes.py', '_base_/schedule_40k.py', '_base_/runtime_seg.py']

model = dict(
    data_preprocessor=dict(size=(768, 768)),
    backbone=dict(
        type='mmsoft.SOFT', arch='tiny', init_cfg=dict(type='Pretrained', checkpoint='pretrained/soft_pp_tiny.pth')
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=19),
    auxiliary_head=dict(in_channels=320, num_classes=19),
)
