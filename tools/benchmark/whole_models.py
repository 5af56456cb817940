"""Detectors and segmentors of our configs around any backbone, with a synthetic image."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mmsoft
from mmsoft.versions import require

from .cases import Case, Work, build_backbone

CONFIGS = dict(
    retinanet='retinanet_soft_pp_small_1x_coco',
    mask_rcnn='mask_rcnn_soft_pp_small_1x_coco',
    upernet='upernet_soft_pp_small_160k_ade20k',
)
OBJECTS = 7  # an image of COCO has about so many


def build_whole(case: Case, device: str) -> Work:
    """Forward: predictions of one batch, without weights for it few; training: the sum of the losses."""
    require('mmengine', 'mmcv', 'mmdet', 'mmseg')
    model = build_model(case).to(device)
    training = case.task == 'train'
    model.train(training)

    def data(size: tuple[int, int]) -> dict[str, Any]:
        if case.family == 'upernet':
            model.data_preprocessor.size = size
        samples = [_sample(case.family, *size).to(device) for _ in range(case.batch)]
        images = [torch.randint(256, (3, *size), dtype=torch.uint8) for _ in samples]
        return model.data_preprocessor(dict(inputs=images, data_samples=samples), training)

    if not training:
        return Work(model, data, lambda inputs: model(**inputs, mode='predict'))
    return Work(model, data, lambda inputs: model.parse_losses(model(**inputs, mode='loss'))[0])


def build_model(case: Case) -> nn.Module:
    """The config's model with the case's backbone in it."""
    from mmengine.model import revert_sync_batchnorm
    from mmengine.registry import MODELS, init_default_scope

    from mmsoft.engine.config import load_config, without_pretrained

    cfg = load_config(mmsoft.config_path(CONFIGS[case.family]))
    init_default_scope(cfg.default_scope)
    without_pretrained(cfg)
    backbone = build_backbone(case)
    widths = output_channels(backbone)
    if 'neck' in cfg.model:
        cfg.model.neck.in_channels = widths
    else:
        cfg.model.decode_head.in_channels = widths
        cfg.model.auxiliary_head.in_channels = widths[cfg.model.auxiliary_head.in_index]
    cfg.model.backbone.arch = 'tiny'  # replaced at once
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.backbone = backbone
    return model


def output_channels(backbone: nn.Module) -> list[int]:
    """Widths of the maps, of any library's backbone."""
    probe = copy.deepcopy(backbone).to('meta')
    probe.eval()
    return [out.shape[1] for out in probe(torch.zeros(1, 3, 64, 64, device='meta'))]


def _sample(family: str, height: int, width: int) -> Any:
    """What the data pipeline would give for an image: its size, with boxes, masks or a label map."""
    size = (height, width)
    meta = dict(img_shape=size, ori_shape=size, pad_shape=size, scale_factor=(1.0, 1.0), flip=False)
    if family == 'upernet':
        from mmengine.structures import PixelData
        from mmseg.structures import SegDataSample

        labels = torch.randint(150, (1, height // 8 + 1, width // 8 + 1))
        labels = labels.repeat_interleave(8, 1).repeat_interleave(8, 2)[:, :height, :width]
        return SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=labels))
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    boxes = _boxes(height, width)
    truth = InstanceData(bboxes=boxes, labels=torch.randint(80, (OBJECTS,)))
    if family == 'mask_rcnn':
        truth.masks = _masks(boxes, height, width)
    return DetDataSample(metainfo=meta, gt_instances=truth, ignored_instances=InstanceData(bboxes=boxes[:0]))


def _boxes(height: int, width: int) -> Tensor:
    """(n, 4): objects of a quarter to a half of the image's sides."""
    size = (0.25 + 0.25 * torch.rand(OBJECTS, 2)) * torch.tensor([width, height])
    corner = torch.rand(OBJECTS, 2) * (torch.tensor([width, height]) - size)
    return torch.cat((corner, corner + size), 1)


def _masks(boxes: Tensor, height: int, width: int) -> Any:
    """The boxes filled."""
    from mmdet.structures.mask import BitmapMasks

    masks = np.zeros((len(boxes), height, width), np.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.int().tolist(), strict=True):
        mask[top : bottom + 1, left : right + 1] = 1
    return BitmapMasks(masks, height, width)
