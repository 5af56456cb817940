_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_inline.py', '_base_/runtime_cls.py']

# the authors also add MESA, a loss against the average of the weights from epoch 75 on, which this recipe is without
model = dict(backbone=dict(type='mmsoft.MILAClassifier', arch='base', drop_path_rate=0.5))
train_dataloader = dict(batch_size=64)  # x 8 devices
