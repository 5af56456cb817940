_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_inline.py', '_base_/runtime_cls.py']

model = dict(backbone=dict(type='mmsoft.InLineSwinClassifier', arch='tiny', drop_path_rate=0.2))
