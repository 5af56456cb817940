"""InLine's 300 epochs: the lr, that of the warm-up and the last one are for a batch of 512 and scaled to any other.

20 epochs of warm-up and no average of the weights; Swin and DeiT take it as it is.
"""

_base_ = './schedule_300e.py'

optim_wrapper = dict(optimizer=dict(lr=5e-4), clip_grad=dict(max_norm=5.0))
auto_scale_lr = dict(base_batch_size=512)
custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=20, warmup_lr=5e-7, min_lr=5e-6),
    dict(type='mmsoft.LogThroughput'),
]
