_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_mila.py', '_base_/runtime_cls.py']

model = dict(
    backbone=dict(type='mmsoft.MILAClassifier', arch='base', drop_path_rate=0.5),
    mesa=dict(weight=2.0, begin=0.25),  # from epoch 75 on
)
train_dataloader = dict(batch_size=64)  # x 8 devices
