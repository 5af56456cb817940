"""Random pictures with what each kind of method trains on: boxes, masks, maps of labels, tracks, lanes."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.structures import BaseDataElement, InstanceData, PixelData
from torch import Tensor

OBJECTS = 3
IGNORED = 255
LANES, PERSONS = (320, 800), (256, 128)  # heights and widths that CLRNet and ReID know


def seed(number: int) -> None:
    for start in (random.seed, np.random.seed, torch.manual_seed):
        start(number)


def batch_for(library: str, config: Config, side: int, training: bool) -> dict[str, Any]:
    """Two pictures to train on, one to predict, as the configs' loaders give; a film where the model takes films."""
    number, model = 2 if training else 1, config['model']
    if library == 'mmseg':
        return _batch([_labelled_picture(model, side) for _ in range(number)], (side, side))
    kind, alone = model['data_preprocessor']['type'], model['data_preprocessor'].get('use_det_processor', False)
    if kind == 'MultiBranchDataPreprocessor' and training:
        branches = {name: _detection_batch(config, side, 2) for name in ('sup', 'unsup_teacher', 'unsup_student')}
        return {key: {name: batch[key] for name, batch in branches.items()} for key in ('inputs', 'data_samples')}
    if kind == 'TrackDataPreprocessor' and not (training and alone):
        return _film(config, side, 2 if training else 4)
    if kind == 'ReIDDataPreprocessor':
        return _batch([_person(person // 2) for person in range(2 * number)], PERSONS)
    if kind == 'LineDetDataProcessor':
        return _batch([_lanes(*LANES) for _ in range(number)], LANES)
    return _detection_batch(config, side, number)


def _batch(samples: list, size: tuple[int, int]) -> dict[str, Any]:
    return dict(inputs=[_picture(size) for _ in samples], data_samples=samples)


def _picture(size: tuple[int, int]) -> Tensor:
    return torch.randint(256, (3, *size), dtype=torch.uint8)


def _detection_batch(config: Config, side: int, pictures: int) -> dict[str, Any]:
    from mmdet.structures.bbox import HorizontalBoxes

    batch = _batch([_objects(config, side, number) for number in range(pictures)], (side, side))
    for sample in batch['data_samples']:
        for instances in (sample.gt_instances, sample.ignored_instances):
            instances.bboxes = HorizontalBoxes(instances.bboxes)
    return batch


def _film(config: Config, side: int, length: int) -> dict[str, Any]:
    from mmdet.structures import TrackDataSample

    frames = [_objects(config, side, number) for number in range(length)]
    for frame in frames:
        frame.gt_instances = frames[0].gt_instances.clone()  # all stands still, else StrongSORT aligns no frames
    film = TrackDataSample(
        video_data_samples=frames, metainfo=dict(key_frames_inds=[0], ref_frames_inds=[1], ori_video_length=length)
    )
    return dict(inputs=[torch.stack([_picture((side, side))] * length)], data_samples=[film])


def _objects(config: Config, side: int, number: int) -> Any:
    """One picture's objects: boxes, masks if the config loads them, a map if the model has labels without objects."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    model, boxes = config['model'], _boxes(OBJECTS, side)
    sample = DetDataSample(metainfo=_facts(side, number))
    sample.gt_instances = InstanceData(
        bboxes=boxes, labels=torch.randint(_classes(model), (OBJECTS,)), instances_ids=torch.arange(OBJECTS)
    )
    if any(values(config.get('train_dataloader'), 'with_mask', bool)):
        sample.gt_instances.masks = BitmapMasks(_filled(boxes, side), side, side)
    sample.ignored_instances = InstanceData(bboxes=_boxes(1, side))
    if not any(values(model, 'rpn_head', dict)):
        sample.proposals = InstanceData(bboxes=_boxes(50, side), scores=torch.rand(50))  # for Fast R-CNN
    stuff = _stuff(model)
    if stuff:
        sample.gt_sem_seg = PixelData(sem_seg=_label_map(*stuff, side))
    return sample


def _facts(side: int, number: int) -> dict[str, Any]:
    """What a pipeline writes about a picture that it did not change."""
    return dict(
        img_id=number,
        img_path=f'{number}.png',
        img_shape=(side, side),
        ori_shape=(side, side),
        scale_factor=(1.0, 1.0),
        flip=False,
        flip_direction=None,
        border=np.array([0, side, 0, side]),
        homography_matrix=np.eye(3, dtype=np.float32),
        frame_id=number,
        video_id=0,
    )


def _boxes(number: int, side: int) -> Tensor:
    """Each side between a quarter and a half of the picture's."""
    size = side * (0.25 + 0.25 * torch.rand(number, 2))
    corner = torch.rand(number, 2) * (side - size)
    return torch.cat((corner, corner + size), 1)


def _filled(boxes: Tensor, side: int) -> np.ndarray:
    """A mask of every box."""
    masks = np.zeros((len(boxes), side, side), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return masks


def _label_map(first: int, beyond: int, side: int) -> Tensor:
    """Four by four blocks of labels from ``first`` on and below ``beyond``, and a few pixels that are ignored."""
    blocks = torch.randint(first, beyond, (4, 4)).repeat_interleave(side // 4, 0).repeat_interleave(side // 4, 1)
    labels = torch.full((1, side, side), IGNORED)
    labels[0, : blocks.shape[0], : blocks.shape[1]] = blocks
    labels[0, :2] = IGNORED
    return labels


def _classes(model: dict) -> int:
    """Of objects; a network of proposals tells none apart."""
    things = list(values(model, 'num_things_classes'))
    return min(things or values(model, 'num_classes'), default=1)


def _stuff(model: dict) -> tuple[int, int] | None:
    """The labels of a panoptic map that stand for no object, or all of a semantic head's."""
    things, stuff = (next(values(model, f'num_{kind}_classes'), 0) for kind in ('things', 'stuff'))
    if stuff:
        return things, things + stuff
    return next(((0, head['num_classes']) for head in values(model, 'semantic_head', dict)), None)


def values(node: Any, key: str, kind: type = int) -> Iterator[Any]:
    """Every value of that kind below ``key``, anywhere in a config."""
    if isinstance(node, dict):
        if isinstance(node.get(key), kind):
            yield node[key]
        node = list(node.values())
    if isinstance(node, list | tuple):
        for child in node:
            yield from values(child, key, kind)


def _labelled_picture(model: dict, side: int) -> Any:
    from mmseg.structures import SegDataSample

    sample = SegDataSample(metainfo=_facts(side, 0))
    labels = _label_map(0, min(values(model, 'num_classes')), side)
    sample.gt_sem_seg = PixelData(data=labels)
    sample.gt_edge_map = PixelData(data=(labels != labels.roll(1, 2)).long())
    sample.gt_depth_map = PixelData(data=torch.rand(1, side, side))
    return sample


def _person(number: int) -> Any:
    from mmdet.structures import ReIDDataSample

    return ReIDDataSample(metainfo=dict(img_shape=PERSONS)).set_gt_label(number)


def _lanes(height: int, width: int) -> Any:
    """Two straight lines from the lower edge, as arrays and as a map."""
    from mmdet.datasets.transforms import LinesToArray

    lines = [[(start + 0.3 * (height - y), y) for y in range(height - 1, height // 2, -10)] for start in (100.0, 400.0)]
    sample = BaseDataElement(metainfo=dict(img_shape=(height, width)))
    sample.lines_array = LinesToArray(img_height=height, img_width=width).transform(dict(lines=lines))['lines_array']
    sample.gt_sem_seg = PixelData(sem_seg=torch.randint(len(lines) + 1, (1, height, width)))
    sample.org_height, sample.org_width = height, width
    return sample
