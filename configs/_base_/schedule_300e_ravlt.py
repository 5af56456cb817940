"""RAVLT's 300 epochs: the lr, that of the warm-up and the last one are for a batch of 512 and scaled to any other.

5 epochs of warm-up, no clipping, and an average of the weights, with a decay of 0.99996^(batch / 512). The authors do
not scale the last two rates, 1e-6 and 1e-5: at their batch of 1024, which is ours, they are the same.
"""

_base_ = './schedule_300e_inline.py'

optim_wrapper = dict(clip_grad=None)
custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=5, warmup_lr=5e-7, min_lr=5e-6),
    dict(type='mmsoft.AverageWeights', decay=0.99996, batch=512),
    dict(type='mmsoft.LogThroughput'),
]
sync_bn = 'torch'
