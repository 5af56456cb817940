_base_ = ['_base_/classifier.py', '_base_/in1k_repeated.py', '_base_/schedule_300e_ravlt.py', '_base_/runtime_cls.py']

model = dict(backbone=dict(type='mmsoft.RAVLTClassifier', arch='base', drop_path_rate=0.4))
