"""1x on COCO: 12 epochs of AdamW, lr 1e-4 for a batch of 16.

117,266 training images with objects / 16 = 7,330 iterations an epoch, 87,960 in all; lr / 10 after
8 and after 11 epochs.
"""

_base_ = './no_decay.py'

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=12, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)  # 8 devices x 2 images
