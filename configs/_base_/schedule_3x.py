"""3x on COCO: 36 epochs, 3 x 87,960 = 263,880 iterations of 16 images; lr / 10 after 27 and after 33 epochs."""

_base_ = './schedule_1x.py'

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1),
]
