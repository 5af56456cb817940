"""1x with a weight decay of 1e-4 on everything: RetinaNet of RAVLT."""

_base_ = './schedule_1x.py'

optim_wrapper = dict(optimizer=dict(weight_decay=1e-4), paramwise_cfg=None)
