"""80,000 iterations of 8 devices x 2 images: 20,210 ADE20K images / 16 = 1,263 an epoch, so 63 epochs.

Semantic FPN of RAVLT: a weight decay of 1e-4 on everything, and no warm-up.
"""

_base_ = './schedule_160k.py'

train_cfg = dict(max_iters=80000, val_interval=8000)
param_scheduler = [dict(type='PolyLR', power=0.9, eta_min=1e-6, by_epoch=False, begin=0, end=80000)]
optim_wrapper = dict(optimizer=dict(lr=1e-4, weight_decay=1e-4), paramwise_cfg=None)
default_hooks = dict(checkpoint=dict(interval=8000))
