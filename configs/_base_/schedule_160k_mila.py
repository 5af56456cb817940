"""160,000 iterations with a weight decay of 0.01, from which norms alone are exempt: UperNet of MILA and of RAVLT."""

_base_ = './schedule_160k_inline.py'

optim_wrapper = dict(paramwise_cfg=dict(_delete_=True, norm_decay_mult=0.0))
