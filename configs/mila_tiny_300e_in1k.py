_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_mila.py', '_base_/runtime_cls.py']

model = dict(
    backbone=dict(type='mmsoft.MILAClassifier', arch='tiny', drop_path_rate=0.2),
    mesa=dict(weight=1.0, begin=0.25),  # from epoch 75 on
)
