"""Small drawn data sets, and configs of them."""

import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path

from mmengine.registry import DATASETS, DefaultScope

from mmsoft.datasets.layout import check_dataset
from mmsoft.datasets.miniature import FOLDERS

FORK = multiprocessing.get_context('fork')
SIZE = (64, 96)
SMALL = dict(train=8, val=4, size=SIZE)
SCOPES = dict(coco='mmdet', ade20k='mmseg', cityscapes='mmseg')
LOAD = {
    'coco': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True, with_mask=True)],
    'ade20k': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')],
    'cityscapes': [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations')],
}
PACK = dict(mmdet=dict(type='PackDetInputs'), mmseg=dict(type='PackSegInputs'))


def config(world: str, root: Path, split: str = 'val', **options) -> dict:
    """The data set of a world, as the configs write it."""
    part = dict(train='training', val='validation')[split]
    layouts = dict(
        coco=dict(
            type='CocoDataset',
            ann_file=f'annotations/instances_{split}2017.json',
            data_prefix=dict(img=f'{split}2017/'),
        ),
        ade20k=dict(
            type='ADE20KDataset', data_prefix=dict(img_path=f'images/{part}', seg_map_path=f'annotations/{part}')
        ),
        cityscapes=dict(
            type='CityscapesDataset', data_prefix=dict(img_path=f'leftImg8bit/{split}', seg_map_path=f'gtFine/{split}')
        ),
    )
    pipeline = [*LOAD[world], PACK[SCOPES[world]]]
    return {**layouts[world], 'data_root': f'{root / FOLDERS[world]}/', 'pipeline': pipeline, **options}


def safely(pipeline: list, record: Path, training: bool, num_classes: int | None = None) -> list:
    """The pipeline with its loading steps wrapped."""
    options = dict(record=str(record), training=training, num_classes=num_classes)
    wrapped = [dict(type='mmsoft.ReadSafely', loader=step, **options) for step in pipeline[:2]]
    return [*wrapped, *pipeline[2:]]


def check(dataset: dict, scope: str = 'mmdet') -> list[str]:
    with DefaultScope.overwrite_default_scope(scope):
        return check_dataset(dataset)


def build(world: str, root: Path, **options):
    with DefaultScope.overwrite_default_scope(SCOPES[world]):
        return DATASETS.build(config(world, root, **options))


def rewrite_coco(folder: Path, change: Callable[[dict], object]) -> None:
    path = folder / 'annotations' / 'instances_val2017.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
