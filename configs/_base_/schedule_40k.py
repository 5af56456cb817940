"""40,000 iterations of 4 devices x 2 images: 2,975 Cityscapes images / 8 = 371 an epoch, so 108 epochs."""

_base_ = './schedule_160k.py'

train_cfg = dict(max_iters=40000, val_interval=4000)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=1500, end=40000),
]
default_hooks = dict(checkpoint=dict(interval=4000))
auto_scale_lr = dict(base_batch_size=8)
