"""1x with a weight decay of 0.05, from which norms alone are exempt: Mask R-CNN of MILA and of RAVLT."""

_base_ = './schedule_1x.py'

optim_wrapper = dict(optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(_delete_=True, norm_decay_mult=0.0))
