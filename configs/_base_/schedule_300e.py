"""300 epochs of AdamW with timm's cosine; the lr, which a config adds, is for a batch of 1024 and scaled to any other.

1,281,167 images / 1024 = 1,251 iterations an epoch, 375,300 in all, 12,510 of warm-up.
"""

_base_ = './no_decay.py'

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=300, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
param_scheduler = None
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', betas=(0.9, 0.999), weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
)
auto_scale_lr = dict(enable=True, base_batch_size=1024)  # 8 devices x 128 images
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    checkpoint=dict(
        type='CheckpointHook',
        interval=1,
        max_keep_ckpts=3,
        save_best='accuracy/top1',
        rule='greater',
        save_param_scheduler=False,  # timm's schedule has no state
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
)
custom_hooks = [
    dict(type='mmsoft.CosineSchedule', warmup_epochs=10, warmup_lr=1e-6, min_lr=5e-5),
    dict(type='mmsoft.AverageWeights', decay=0.99996),
    dict(type='mmsoft.LogThroughput'),
]
