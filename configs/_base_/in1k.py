"""ImageNet-1K in class folders at 224 x 224, 8 devices x 128 images. MMSOFT_DATA moves the folder that holds imagenet/.

The recipe's colour jitter is left out: beside rand-augment timm does not apply it. Where the validation set is one
flat folder, name its file of labels: val_dataloader.dataset.labels (and test_dataloader.dataset.labels).
"""

data_root = '{{$MMSOFT_DATA:data}}/imagenet/'
train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    drop_last=True,
    pin_memory=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        type='mmsoft.ClassFolders',
        data_root=data_root,
        split='train',
        transform=dict(
            input_size=224,
            is_training=True,
            auto_augment='rand-m9-mstd0.5-inc1',
            interpolation='random',
            re_prob=0.25,
            re_mode='pixel',
        ),
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    pin_memory=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        type='mmsoft.ClassFolders',
        data_root=data_root,
        split='val',
        labels=None,
        transform=dict(input_size=224, crop_pct=0.875, interpolation='bicubic'),  # resized to 256, centre cropped
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='mmsoft.TopAccuracy', topk=(1, 5))
test_evaluator = val_evaluator
