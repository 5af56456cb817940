"""InLine's 300 epochs for PVT: 5 of warm-up, gradients clipped at 1 (tiny and small take that out)."""

_base_ = './schedule_300e_inline.py'

optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=5, warmup_lr=5e-7, min_lr=5e-6),
    dict(type='mmsoft.LogThroughput'),
]
