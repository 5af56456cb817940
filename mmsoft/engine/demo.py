"""``--demo``: any config on a miniature world drawn on the spot, smaller and shorter, from a random start."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import get_dist_info

from mmsoft.datasets.layout import leaf_datasets
from mmsoft.datasets.miniature import KINDS, write_world

from .config import without_pretrained
from .parts import LOADERS, kind_of, pipelines, walk_dicts
from .tasks import CLASSIFICATION, TASKS, task_of

WORLD_OF = {
    'CocoDataset': 'coco',
    'ADE20KDataset': 'ade20k',
    'CityscapesDataset': 'cityscapes',
    'ClassFolders': 'imagenet',
}
CLASSES = dict(CocoDataset=80, ADE20KDataset=150, CityscapesDataset=19, ClassFolders=len(KINDS))
SIZE = (128, 160)  # height, width
CLASS_SCENES, CLASS_SIZE = (256, 320), 96  # scenes from which pictures are cut, and the pictures
IMAGES, VAL_IMAGES = 240, 60
BATCH = {task.name: task.demo_batch for task in TASKS}  # of all processes together
EPOCHS = {task.name: task.demo_epochs for task in TASKS}
LR = 4e-4
# What the demo sets itself, so that options for it would have no effect.
SETS = (
    'auto_scale_lr.enable',
    'data_root',
    'default_hooks.checkpoint.interval',
    'default_hooks.checkpoint.max_keep_ckpts',
    'default_hooks.logger.interval',
    'model.backbone.drop_path_rate',
    'model.mixup',
    'optim_wrapper.clip_grad',
    'optim_wrapper.optimizer.lr',
    'param_scheduler',
    'train_cfg',
    *(f'{name}.{part}' for name in LOADERS for part in ('batch_size', 'num_workers', 'persistent_workers', 'dataset')),
)


def check_options(options: Mapping[str, Any], given: Mapping[str, Any] | None = None) -> None:
    """Raise a ValueError if ``options`` of a config, or those of a tool that are ``given``, hold what the demo sets."""
    for name, value in (given or {}).items():
        if value is not None:
            raise ValueError(f'--demo sets data, batches and schedule itself: leave out --{name}')
    for key in options:
        if any(f'{key}.'.startswith(f'{own}.') or own.startswith(f'{key}.') for own in SETS):
            raise ValueError(
                f'--demo sets {key} itself, as it does data, batches and schedule: leave it out of --cfg-options'
            )


def overlay(cfg: Config, root: str | Path | None = None) -> None:
    """Change ``cfg`` in place; the world is written below ``root`` (MMSOFT_DEMO_DATA, else work_dirs/miniature)."""
    root = Path(root or os.environ.get('MMSOFT_DEMO_DATA', 'work_dirs/miniature'))
    for name in LOADERS:
        if cfg.get(name) is None:
            continue
        cfg[name].update(num_workers=0, persistent_workers=False, batch_size=task_of(cfg).demo_val_batch)
        split = 'train' if name == 'train_dataloader' else 'val'
        for leaf in leaf_datasets(cfg[name].dataset):
            kind = _use_world(leaf, root, split)
        for pipeline in pipelines(cfg[name].dataset):
            _shrink(pipeline)
    for name in ('val_evaluator', 'test_evaluator'):
        for metric in walk_dicts(cfg.get(name)):
            if 'ann_file' in metric:
                metric.ann_file = str(root / 'coco' / 'annotations' / 'instances_val2017.json')
    cfg.train_dataloader.batch_size = _batch(cfg)[0]
    without_pretrained(cfg)
    for part in walk_dicts(cfg.model):
        if 'num_classes' in part:
            part.num_classes = CLASSES[kind]
    _shrink_model(cfg.model)
    _shorten(cfg)


def _use_world(leaf: ConfigDict, root: Path, split: str) -> str:
    """Read the world that is like this data set; which kind it is."""
    kind = kind_of(leaf)
    if kind not in WORLD_OF:
        raise ValueError(f'--demo has no miniature world for {leaf.type}; it has {", ".join(WORLD_OF)}')
    world = WORLD_OF[kind]
    leaf.pop('metainfo', None)  # the world has the data set's own classes
    size = CLASS_SCENES if world == 'imagenet' else SIZE
    leaf.data_root = f'{write_world(world, root, IMAGES, VAL_IMAGES, size)}/'
    if world == 'imagenet':
        leaf.update(split=split, labels=None)
        leaf.transform.input_size = CLASS_SIZE
        if split == 'train':  # a short training needs little variety
            leaf.transform.update(auto_augment=None, color_jitter=0.1, re_prob=0.0, scale=(0.4, 1.0))
    elif world == 'coco':
        leaf.ann_file, leaf.data_prefix = f'annotations/instances_{split}2017.json', dict(img=f'{split}2017/')
    elif world == 'ade20k':
        part = dict(train='training', val='validation')[split]
        leaf.data_prefix = dict(img_path=f'images/{part}', seg_map_path=f'annotations/{part}')
    else:
        leaf.data_prefix = dict(img_path=f'leftImg8bit/{split}', seg_map_path=f'gtFine/{split}')
    return kind


def _shrink(pipeline: list[ConfigDict]) -> None:
    height, width = SIZE
    for step in walk_dicts(pipeline):
        kind = kind_of(step)
        if kind in ('Resize', 'RandomResize'):
            step.scale = (width, height)
        if kind == 'RandomResize':
            step.ratio_range = (0.75, 1.5)
        elif kind == 'RandomChoiceResize':
            step.scales = [(2 * width, side) for side in (height * 3 // 4, height * 7 // 8, height)]
        elif kind == 'RandomCrop':
            step.crop_size = SIZE


def _shrink_model(model: ConfigDict) -> None:
    """Fewer proposals, which dominate on small images, and no regularisation, which a short training does not need."""
    if model.get('data_preprocessor', {}).get('size') is not None:
        model.data_preprocessor.size = SIZE
    if str(model.backbone.type).startswith('mmsoft.'):
        model.backbone.drop_path_rate = 0.0
    if 'mixup' in model:
        model.mixup = None
        model.backbone.img_size = CLASS_SIZE
    for stage in ('train_cfg', 'test_cfg'):
        parts = model.get(stage) or {}
        for name in ('rpn', 'rpn_proposal'):
            if 'max_per_img' in parts.get(name, {}):
                parts[name].update(nms_pre=400, max_per_img=100)
        if 'sampler' in (parts.get('rcnn') or {}):
            parts.rcnn.sampler.num = 64


def _shorten(cfg: Config) -> None:
    """A few epochs, one cosine, and the lr of a random start."""
    batch, processes = _batch(cfg)
    epochs = cfg.get('demo_epochs', EPOCHS[task_of(cfg).name])
    steps = epochs * math.ceil(IMAGES / (batch * processes))  # except for classes, whose schedule counts by itself
    by_epoch = cfg.train_cfg.get('by_epoch', 'max_epochs' in cfg.train_cfg)
    if by_epoch:
        cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=max(1, epochs // 3))
    else:
        cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=steps // 3)
    schedules = [hook for hook in cfg.get('custom_hooks') or () if kind_of(hook) == 'CosineSchedule']
    for hook in schedules:
        hook.update(warmup_epochs=1, min_lr=LR / 100)
    if 'auto_scale_lr' in cfg:
        cfg.auto_scale_lr.enable = False
    if not schedules:
        warmup = steps // 10
        cosine = dict(type='CosineAnnealingLR', eta_min=LR / 100, T_max=steps - warmup)
        cfg.param_scheduler = [
            dict(type='LinearLR', start_factor=0.05, by_epoch=False, begin=0, end=warmup),
            dict(**cosine, by_epoch=False, begin=warmup, end=steps),
        ]
    cfg.optim_wrapper.optimizer.lr = LR
    cfg.optim_wrapper.clip_grad = dict(max_norm=5.0)
    cfg.default_hooks.logger.interval = 10
    cfg.default_hooks.checkpoint.update(interval=cfg.train_cfg.val_interval, max_keep_ckpts=1)


def _batch(cfg: Config) -> tuple[int, int]:
    """Images a process, and processes: together those of BATCH, or one each if they are more."""
    processes = get_dist_info()[1]
    return max(1, BATCH[task_of(cfg).name] // processes), processes


def describe(cfg: Config) -> str:
    """One line for the user."""
    epochs, (batch, processes) = cfg.train_cfg.get('max_epochs'), _batch(cfg)
    length = f'{epochs} epochs' if epochs else f'{cfg.train_cfg.max_iters} iterations'
    pictures = f'{IMAGES} drawn images of {SIZE[1]} x {SIZE[0]}'
    if task_of(cfg) is CLASSIFICATION:
        pictures = f'pictures of {CLASS_SIZE} x {CLASS_SIZE}, cut from {IMAGES} drawn scenes'
    return f'demo: {pictures}, {length} of batches of {batch * processes}, from a random start'
