"""Miniature worlds through the real data sets and metrics."""

import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import cv2
import pytest
import torch
from small_worlds import FORK, SIZE, SMALL, build

from mmsoft.datasets.miniature import FOLDERS, WORLDS, scenes, write_world


def test_coco_scores_its_own_annotations_as_perfect(worlds: Path) -> None:
    from mmdet.evaluation import CocoMetric

    dataset = build('coco', worlds, test_mode=True)
    metric = CocoMetric(ann_file=dataset.ann_file, metric=['bbox', 'segm'])
    metric.dataset_meta = dataset.metainfo
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        truth = sample.gt_instances
        found = dict(bboxes=truth.bboxes.tensor, labels=truth.labels, scores=torch.ones(len(truth)))
        found['masks'] = torch.from_numpy(truth.masks.masks).bool()
        metric.process({}, [{**sample.to_dict(), 'pred_instances': found}])
    scores = metric.evaluate(len(dataset))
    assert len(dataset) == 4
    assert scores['coco/bbox_mAP'] == 1.0
    assert scores['coco/segm_mAP'] == 1.0


def test_coco_polygons_and_boxes_are_those_of_the_drawn_masks(worlds: Path) -> None:
    dataset = build('coco', worlds, test_mode=True)
    objects = 0
    for index, scene in enumerate(scenes(4, SIZE, (0, 1))):
        truth = dataset[index]['data_samples'].gt_instances
        assert len(truth) == len(scene.masks)
        for mask, box, drawn in zip(truth.masks.masks, truth.bboxes.tensor, scene.masks, strict=True):
            assert (mask.astype(bool) & drawn).sum() / (mask.astype(bool) | drawn).sum() > 0.98
            rows, columns = drawn.nonzero()
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            objects += 1
    assert objects >= 8
    assert len({kind for scene in scenes(20, SIZE, (0, 0)) for kind in scene.kinds}) == 6


@pytest.mark.parametrize('world', ['ade20k', 'cityscapes'])
def test_label_maps_score_as_perfect(world: str, worlds: Path) -> None:
    from mmseg.evaluation import IoUMetric

    dataset = build(world, worlds, test_mode=True)
    metric = IoUMetric(iou_metrics=['mIoU'])
    metric.dataset_meta = dataset.metainfo
    values = set()
    for index in range(len(dataset)):
        sample = dataset[index]['data_samples']
        labels = sample.gt_sem_seg.data
        values |= set(labels.unique().tolist())
        found = torch.where(labels == 255, 0, labels)  # what is unlabelled does not count
        metric.process({}, [{**sample.to_dict(), 'pred_sem_seg': dict(data=found)}])
    assert metric.evaluate(len(dataset))['mIoU'] == 100
    names = dataset.metainfo['classes']
    assert 255 in values
    assert {'sky', dict(ade20k='floor', cityscapes='road')[world]} < {names[value] for value in values - {255}}
    assert len(values) >= 6
    assert names[labels[0, 0, 0]] == 'sky'


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def test_a_world_is_the_same_wherever_it_is_written(worlds: Path, tmp_path: Path) -> None:
    for world in WORLDS:
        assert contents(write_world(world, tmp_path, **SMALL)) == contents(worlds / FOLDERS[world])
    images = [data for name, data in contents(tmp_path / 'coco').items() if name.endswith('.jpg')]
    assert len(set(images)) == len(images) == 12
    before = contents(tmp_path / 'coco')
    again = write_world('coco', tmp_path, **{**SMALL, 'seed': 1})  # takes the place of what it wrote before
    assert not {data for name, data in contents(again).items() if name.endswith('.jpg')} & set(before.values())
    assert len(contents(again)) == len(before)


def _write(root: Path, train: int) -> None:
    cv2.setNumThreads(0)  # its threads do not survive a fork
    write_world('ade20k', root, **{**SMALL, 'train': train})


@pytest.mark.slow
def test_processes_that_write_the_same_world_at_once_or_are_killed(worlds: Path, tmp_path: Path) -> None:
    def start(train: int) -> BaseProcess:
        process = FORK.Process(target=_write, args=(tmp_path, train))
        process.start()
        return process

    killed = start(train=100_000)
    deadline = time.monotonic() + 60
    while not any(tmp_path.rglob('*.png')):
        assert time.monotonic() < deadline
        assert killed.is_alive()
        time.sleep(0.01)
    others = [start(train=8), start(train=8)]
    time.sleep(0.3)
    killed.kill()
    for process in others:
        process.join(60)
        assert process.exitcode == 0
    assert contents(tmp_path / FOLDERS['ade20k']) == contents(worlds / FOLDERS['ade20k'])
    assert [path.name for path in (tmp_path / 'ade').iterdir() if path.is_dir()] == ['ADEChallengeData2016']


def test_a_folder_of_the_users_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / 'coco').mkdir()
    (tmp_path / 'coco' / 'mine.txt').write_text('mine')
    with pytest.raises(FileExistsError, match='not a miniature world; give another root'):
        write_world('coco', tmp_path, **SMALL)
    assert contents(tmp_path / 'coco') == {'mine.txt': b'mine'}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ['coco']


@pytest.mark.parametrize('options', [dict(train=0), dict(val=0), dict(size=(16, 64)), dict(world='lvis')])
def test_worlds_that_cannot_be_drawn(options: dict, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'at least one image|choose one of'):
        write_world(**{'world': 'coco', 'root': tmp_path, **SMALL, **options})
    assert not any(tmp_path.iterdir())
