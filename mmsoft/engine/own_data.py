"""``--data``: any config on a folder of one's own, whose classes, heads, metrics and parts follow."""

import copy
import hashlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config, ConfigDict
from mmengine.dist import broadcast_object_list, get_dist_info, is_main_process
from mmengine.logging import print_log

from mmsoft.checkpoints import read_checkpoint
from mmsoft.datasets.layout import leaf_datasets
from mmsoft.datasets.own import PARTS, look, write
from mmsoft.datasets.own.writing import put
from mmsoft.files import shown
from mmsoft.visualization import contact_sheet
from mmsoft.weights.meta import dataset_meta
from mmsoft.weights.sources import of_run

from .browse import drawn_samples
from .heads import misfits, set_counts
from .own_report import colours, report
from .parts import LOADERS, kind_of, pipelines, walk_dicts
from .runner import was_trained_in
from .tasks import CLASSIFICATION, SEMANTIC_SEGMENTATION, Task, task_of
from .watching import end_together

DATA_HELP = 'your own data: COCO JSON, VOC, YOLO, LabelMe, label maps, class folders or a CSV; see docs/own_data.md'
OTHER_STEPS = dict(
    LoadProposals='proposals of another model',
    LoadPanopticAnnotations='segments of whole pictures',
    LoadDepthAnnotation='maps of depth',
    TransformBroadcaster='films',
    PackReIDInputs='pictures of persons with numbers',
)
SAMPLES = 8  # pictures that are drawn
LEAST_STEPS = 4  # of an epoch, where batches would be larger than the data
# What --data sets itself, so that options for it would have no effect.
_OF_DATASETS = ('type', 'data_root', 'ann_file', 'data_prefix', 'metainfo', 'split', 'labels', 'classes', 'listing')
SETS = (
    *('data_root', 'val_evaluator', 'test_evaluator'),
    *(f'{name}.dataset.{option}' for name in LOADERS for option in _OF_DATASETS),
)


def folder_name(data: str | None) -> str:
    """An ending for the work directory of a run on this data: ``_my_set``; nothing without."""
    return '_' + re.sub(r'[^\w.-]+', '_', Path(data).expanduser().resolve().name) if data else ''


def check_options(options: Mapping[str, Any], demo: bool = False) -> None:
    """Raise a ValueError if ``options`` of a config hold what ``--data`` sets, or if the demo is asked for as well."""
    if demo:
        raise ValueError('--demo draws its own data: leave out --data, or --demo')
    for key in options:
        clash = any(f'{key}.'.startswith(f'{own}.') or own.startswith(f'{key}.') for own in SETS)
        if clash or key.endswith('.num_classes'):
            raise ValueError(f'--data sets {key} itself: leave it out of --cfg-options')


def keep_run(work_dir: str | Path) -> None:
    """Raise where a run has written: its config and its annotations would be lost."""
    if was_trained_in(work_dir):
        raise ValueError(
            f'{str(work_dir)!r} has the config and the annotations of a run, which --data would replace: '
            'name another folder'
        )


def use_own_data(
    cfg: Config,
    data: str | Path,
    work_dir: str | Path,
    checkpoint: str | None = None,
    trust: bool = False,
    whole: bool | None = None,
    scales_lr: bool = False,
) -> dict[str, list[str]]:
    """Change ``cfg`` in place to train and test on the folder ``data``; the pictures of each part.

    One process looks at it, all follow.

    Annotations, ``found.md`` and ``samples.png`` go below ``work_dir/data``, the changed config to ``work_dir``.

    With the ``checkpoint`` of a trained model, its classes keep their numbers, and the data is for testing: all of it,
    unless the run that wrote the checkpoint was on it, or the data itself says what is for testing; ``whole`` says so
    in its place. ``trust`` permits a checkpoint that may run code. ``scales_lr`` says that the lr will be scaled to the
    batch, as --auto-scale-lr does.
    """
    task, own, problem = task_of(cfg), None, None
    if is_main_process():
        try:
            _check_steps(cfg, task)
            own = _make(task, Path(data), Path(work_dir), checkpoint, trust, whole)
            _apply(cfg, task, own, scales_lr)
            _draw(cfg, Path(own['folder']))
            cfg.dump(Path(work_dir, Path(cfg.filename or 'config.py').with_suffix('.py').name))
        except Exception as error:  # the others must not wait
            problem = error
    end_together(problem)
    message = [own]
    broadcast_object_list(message)
    if not is_main_process():
        _apply(cfg, task, message[0], scales_lr)
    return message[0]['pictures']


def _make(
    task: Task, data: Path, work_dir: Path, checkpoint: str | None, trust: bool, whole: bool | None
) -> dict[str, Any]:
    """Look, write and tell; what the config needs to know."""
    root = data.expanduser().resolve()
    name = f'{root.name}-{hashlib.sha256(str(root).encode()).hexdigest()[:6]}'
    folder, classes = work_dir / 'data' / name, checkpoint and _carried_classes(checkpoint, trust)
    if whole is None:
        whole = checkpoint is not None and not Path(of_run(checkpoint)).with_name('data').joinpath(name).is_dir()
    found = look(root, task.name, skip=[work_dir], classes=classes or None, whole=whole)
    write(found, folder, task.name)
    found.palette = found.palette or colours(len(found.classes))
    table = report(found, task.name)
    put(folder / 'found.md', table)
    print(shown(table, keep='\n'), flush=True)
    pictures = {part: [str(found.root / picture.path) for picture in found.of(part)] for part in PARTS}
    return dict(
        root=str(found.root),
        folder=str(folder.resolve()),
        classes=found.classes,
        palette=found.palette,
        pictures=pictures,
    )


def _carried_classes(checkpoint: str, trust: bool) -> list[str]:
    """Names of the classes that a checkpoint of a run tells; none of weights alone."""
    content = read_checkpoint(checkpoint, trust)
    meta = dataset_meta(content.get('meta')) if isinstance(content, Mapping) else {}
    return [str(name) for name in meta.get('classes') or ()]


def _apply(cfg: Config, task: Task, own: Mapping[str, Any], scales_lr: bool) -> None:
    parts = {part for part, pictures in own['pictures'].items() if pictures}
    choices = dict(train=('train',), val=('val', 'test'), test=('test', 'val'))
    for mode, wanted in choices.items():
        part = next((part for part in wanted if part in parts), None)
        name = f'{mode}_dataloader'
        if part is None or not cfg.get(name):
            continue
        cfg[name] = copy.deepcopy(cfg[name])
        leaf = _only_leaf(cfg[name].dataset, name)
        _fill(leaf, task, own, part, training=mode == 'train')
        if mode != 'train':
            cfg[f'{mode}_evaluator'] = _evaluator(cfg.get(f'{mode}_evaluator'), task, own, part)
    if 'data_root' in cfg:
        cfg.data_root = f'{own["root"]}/'
    if task is CLASSIFICATION:
        cfg.model.backbone.num_classes = len(own['classes'])
    else:
        set_counts(cfg, misfits(cfg, dict(classes=own['classes'])))
    if 'train' in parts and cfg.get('train_dataloader'):
        _fit_batch(cfg, len(own['pictures']['train']), scales_lr)


def _only_leaf(dataset: ConfigDict, name: str) -> ConfigDict:
    """The data set, or the first of several that are joined and read in the same way: the others are left out."""
    leaves: list[Any] = list(leaf_datasets(dataset))
    if any(leaf.get('pipeline') != leaves[0].get('pipeline') for leaf in leaves):
        raise ValueError(
            f'--data takes the place of one data set; {name} of the config joins {len(leaves)}, read in different ways'
        )
    for node in walk_dicts(dataset):
        if 'datasets' in node:
            node.datasets = node.datasets[:1]
    return leaves[0]


def _check_steps(cfg: Config, task: Task) -> None:
    """Raise where a pipeline reads what no format of --data has."""
    if not any(cfg.get(name) for name in LOADERS):
        raise ValueError(f'the config has none of {", ".join(LOADERS)}: --data changes what they load')
    for step in walk_dicts([list(pipelines(cfg[name].dataset)) for name in LOADERS if cfg.get(name)]):
        stuff = step.get('with_seg') and task is not SEMANTIC_SEGMENTATION
        what = OTHER_STEPS.get(kind_of(step)) or ('maps of stuff beside boxes' if stuff else None)
        if what:
            raise ValueError(
                f'{kind_of(step)} of the config reads {what}, which no format of --data has: take another method, or '
                'its own data sets, whose paths --cfg-options changes'
            )


def _fill(leaf: ConfigDict, task: Task, own: Mapping[str, Any], part: str, training: bool) -> None:
    """The data set of ours in place of the config's, with its pipeline."""
    kept = {key: leaf[key] for key in ('pipeline', 'transform', 'filter_cfg') if key in leaf}
    meta, root, folder = dict(classes=own['classes'], palette=own['palette']), f'{own["root"]}/', own['folder']
    leaf.clear()
    if task is CLASSIFICATION:
        options = dict(type='mmsoft.ClassFolders', data_root=root, split='', listing=f'{folder}/{part}.csv')
        leaf.update(options, classes=own['classes'], transform=kept['transform'])
        return
    if task is SEMANTIC_SEGMENTATION:
        kept.pop('filter_cfg', None)
        leaf.update(type='mmseg.BaseSegDataset', ann_file=f'{folder}/{part}.txt', img_suffix='', seg_map_suffix='.png')
        leaf.update(data_prefix=dict(img_path=root, seg_map_path=f'{folder}/label_maps'))
        for step in walk_dicts(kept['pipeline']):
            step.pop('reduce_zero_label', None)
    else:
        leaf.update(type='mmdet.CocoDataset', ann_file=f'{folder}/{part}.json', data_prefix=dict(img=root))
    leaf.update(metainfo=meta, test_mode=not training, **kept)


def _evaluator(old: Any, task: Task, own: Mapping[str, Any], part: str) -> Any:
    """COCO's metric or IoU in place of those of other data; a classifier's knows no data."""
    if task is CLASSIFICATION:
        return old
    if task is SEMANTIC_SEGMENTATION:
        return dict(type='mmseg.IoUMetric', iou_metrics=['mIoU'])
    kinds = ['bbox', 'segm'] if task.name == 'masks' else 'bbox'
    return dict(type='mmdet.CocoMetric', ann_file=f'{own["folder"]}/{part}.json', metric=kinds)


def _fit_batch(cfg: Config, pictures: int, scales_lr: bool) -> None:
    """Halve the batch until some make an epoch: a small data set is less than one of ImageNet's batches.

    An lr that the config scales to its batch then follows the square root of it: with 4 images of 1024, a classifier
    does not leave its start at 1/256 of its lr, and all of its outputs become alike at the whole lr.
    """
    loader, processes = cfg.train_dataloader, get_dist_info()[1]
    batch = loader.batch_size
    while loader.batch_size > 2 and loader.batch_size * processes * LEAST_STEPS > pictures:
        loader.batch_size //= 2
    if loader.batch_size != batch:
        lr, scaling = (
            'the lr stays as it is written, --auto-scale-lr scales it to the batch',
            cfg.get('auto_scale_lr') or {},
        )
        if scaling.get('enable') and not scales_lr:
            scaling.enable = False
            share = min(1.0, math.sqrt(loader.batch_size * processes / scaling.base_batch_size))
            _soften(cfg, share)
            lr = f'the lr is {share:.2g} times as high, by the root of the batch, and pictures are not mixed or erased'
        print_log(
            f'batches have {loader.batch_size} pictures instead of {batch}: there are {pictures} to train on; {lr}',
            logger='current',
        )


def _soften(cfg: Config, share: float) -> None:
    """A classifier's recipe for a few pictures: so much of its lr, and pictures flipped and cropped alone."""
    cfg.optim_wrapper.optimizer.lr *= share
    for hook in cfg.get('custom_hooks') or ():
        if kind_of(hook) == 'CosineSchedule':
            hook.update(min_lr=hook.get('min_lr', 0.0) * share, warmup_lr=hook.get('warmup_lr', 1e-6) * share)
    if cfg.model.get('mixup') is not None:
        cfg.model.mixup = None
    for leaf in leaf_datasets(cfg.train_dataloader.dataset):
        leaf.get('transform', {}).update(auto_augment=None, re_prob=0.0)


def _draw(cfg: Config, folder: Path) -> None:
    """Some samples as training reads them, without its augmentations."""
    drawn = copy.deepcopy(cfg)
    mode = 'train' if list(folder.glob('train.*')) else 'test'
    plain = 'test' if drawn.get('test_dataloader') else 'val'
    leaf, of_test = (next(leaf_datasets(drawn[f'{name}_dataloader'].dataset)) for name in (mode, plain))
    steps = {key: of_test[key] for key in ('pipeline', 'transform') if key in of_test}
    reads = [step for step in leaf.get('pipeline') or () if kind_of(step) == 'LoadAnnotations']
    if reads and all(kind_of(step) != 'LoadAnnotations' for step in steps['pipeline']):
        steps['pipeline'] = [steps['pipeline'][0], *reads, *steps['pipeline'][1:]]
    drawn[f'{mode}_dataloader'].dataset = ConfigDict({**leaf, **steps})
    drawings = drawn_samples(drawn, mode, SAMPLES, folder / 'samples_faults.jsonl')
    contact_sheet(list(drawings.values()), folder / 'samples.png', titles=list(drawings))
    print(f'drawn samples: {folder / "samples.png"}', flush=True)
