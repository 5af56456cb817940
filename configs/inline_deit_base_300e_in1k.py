_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_inline.py', '_base_/runtime_cls.py']

model = dict(backbone=dict(type='mmsoft.InLineDeiTClassifier', arch='base', img_size=448))
train_dataloader = dict(dataset=dict(transform=dict(input_size=448)))
val_dataloader = dict(dataset=dict(transform=dict(input_size=448)))  # resized to 512, centre cropped
test_dataloader = val_dataloader
