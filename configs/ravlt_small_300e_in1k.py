_base_ = ['_base_/classifier.py', '_base_/in1k.py', '_base_/schedule_300e_ravlt.py', '_base_/runtime_cls.py']

# the authors also repeat augmentations, three of an image in a batch, which this recipe is without
model = dict(backbone=dict(type='mmsoft.RAVLTClassifier', arch='small', drop_path_rate=0.15))
