"""160,000 iterations with the lr of mmsegmentation's Swin, 6e-5, which is that of the networks InLine started from."""

_base_ = './schedule_160k.py'

optim_wrapper = dict(optimizer=dict(lr=6e-5))
