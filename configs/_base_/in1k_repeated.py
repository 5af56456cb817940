"""ImageNet-1K with repeated augmentation: an epoch has a third of the images, each three times."""

_base_ = './in1k.py'

train_dataloader = dict(sampler=dict(_delete_=True, type='mmsoft.RepeatedSampler', num_repeats=3))
