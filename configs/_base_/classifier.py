"""A classifier with the loss of the recipe; a config adds the architecture."""

model = dict(
    type='mmsoft.ImageClassifier',
    backbone=dict(type='mmsoft.SOFTClassifier', num_classes=1000, img_size=224, drop_path_rate=0.1),
    smoothing=0.1,
    mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0),
)
