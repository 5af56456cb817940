"""InLine's 300 epochs for CSwin: no clipping, and an average of the weights, with a decay of 0.9996^(batch / 4096)."""

_base_ = './schedule_300e_inline.py'

optim_wrapper = dict(clip_grad=None)
custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=20, warmup_lr=5e-7, min_lr=1e-5),
    dict(type='mmsoft.AverageWeights', decay=0.9996, batch=4096),
    dict(type='mmsoft.LogThroughput'),
]
