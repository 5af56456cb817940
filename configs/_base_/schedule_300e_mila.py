"""MILA's 300 epochs: InLine's, and an average of the weights, which MESA needs; its decay is 0.9996^(batch / 4096)."""

_base_ = './schedule_300e_inline.py'

custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=20, warmup_lr=5e-7, min_lr=5e-6),
    dict(type='mmsoft.AverageWeights', decay=0.9996, batch=4096),
    dict(type='mmsoft.LogThroughput'),
]
