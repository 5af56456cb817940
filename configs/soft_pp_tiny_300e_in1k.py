_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e.py', '_base_/runtime_cls.py']

model = dict(backbone=dict(arch='tiny'))
optim_wrapper = dict(optimizer=dict(lr=1e-3))
