"""Which whole module a config's model becomes, and how pictures are prepared for it; what has none is refused."""

import re
from collections.abc import Mapping
from typing import Any

from mmengine.config import Config
from torch import nn

from mmsoft.datasets.class_folders import make_transform
from mmsoft.engine.parts import kind_of, pipelines
from mmsoft.engine.predictor import Predictor

from .whole import RawNetwork, Whole, WholeClassifier, WholeSegmentor, WholeSingleStage, WholeTwoStage

RAW = 'export its network alone with --raw'


class ExportError(ValueError):
    """A model that cannot be exported as it is asked for."""


def whole_model(predictor: Predictor) -> tuple[Whole, dict[str, Any]]:
    """The module and the ``preprocessing`` of its file."""
    cfg, model = predictor.cfg, predictor.model
    if predictor.task.name == 'classes':
        steps, mean, std = _class_steps(cfg)
        return WholeClassifier(model, mean, std, bgr=False).eval(), steps
    kind = _detector_kind(model) if predictor.task.name in ('boxes', 'masks') else _segmentor_kind(cfg, model)
    if kind is None:
        raise ExportError(
            f'{type(model).__name__} has no export of the whole model, which RetinaNet, Faster R-CNN, Mask R-CNN, '
            f'UperNet, other segmentors of one head, and classifiers have: {RAW}'
        )
    mean, std, bgr, multiple = _normalisation(model)
    return kind(model, mean, std, bgr=bgr, multiple=multiple).eval(), _pipeline_steps(cfg)


def raw_model(predictor: Predictor) -> tuple[RawNetwork, dict[str, Any]]:
    """The network alone, and the ``preprocessing`` of its file as far as one can repeat it."""
    if predictor.task.name == 'classes':
        raise ExportError('a classifier is exported whole: leave out --raw')
    mean, std, bgr, multiple = _normalisation(predictor.model)
    return RawNetwork(predictor.model, mean, std, bgr=bgr, multiple=multiple).eval(), {}


def _detector_kind(model: nn.Module) -> type[Whole] | None:
    """By what the parts are, so that a subclass with another way to decode is not taken for its parent."""
    head = kind_of(type(getattr(model, 'bbox_head', None)))
    if type(model).__name__ in ('RetinaNet', 'SingleStageDetector') and head == 'RetinaHead':
        _check_coder('bbox_head', model.bbox_head)
        _check_nms('test_cfg', model.bbox_head.test_cfg)
        return WholeSingleStage
    if type(model).__name__ not in ('FasterRCNN', 'MaskRCNN') or type(model.roi_head).__name__ != 'StandardRoIHead':
        return None
    roi = model.roi_head
    parts = [model.rpn_head, roi.bbox_head, roi.bbox_roi_extractor]
    allowed = [('RPNHead',), ('Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead', 'BBoxHead'), ('SingleRoIExtractor',)]
    if roi.with_mask:
        parts += [roi.mask_head, roi.mask_roi_extractor]
        allowed += [('FCNMaskHead',), ('SingleRoIExtractor',)]
    if any(type(part).__name__ not in names for part, names in zip(parts, allowed, strict=True)):
        return None
    _check_coder('rpn_head', model.rpn_head)
    _check_coder('roi_head.bbox_head', roi.bbox_head)
    _check_nms('test_cfg.rpn', model.test_cfg.rpn)
    _check_nms('test_cfg.rcnn', model.test_cfg.rcnn)
    return WholeTwoStage


def _segmentor_kind(cfg: Config, model: nn.Module) -> type[Whole] | None:
    if type(model).__name__ != 'EncoderDecoder' or isinstance(model.decode_head, nn.ModuleList):
        return None
    mode = model.test_cfg.get('mode', 'whole')
    if mode != 'whole':
        raise ExportError(
            f'model.test_cfg.mode is {mode!r}: a file takes pictures whole; '
            'set --cfg-options model.test_cfg.mode=whole, and test the checkpoint so as well'
        )
    if model.decode_head.out_channels == 1:
        raise ExportError(f'model.decode_head.out_channels is 1, scores of two classes: {RAW}')
    return WholeSegmentor


def _check_coder(place: str, head: nn.Module) -> None:
    coder = head.bbox_coder
    if type(coder).__name__ != 'DeltaXYWHBBoxCoder' or getattr(coder, 'add_ctr_clamp', False):
        raise ExportError(f'model.{place}.bbox_coder is {type(coder).__name__}, of which no export knows: {RAW}')
    if getattr(head, 'use_sigmoid_cls', None) is False:
        raise ExportError(f'model.{place}.loss_cls.use_sigmoid is False, of which no export knows: {RAW}')


def _check_nms(place: str, cfg: Mapping[str, Any]) -> None:
    nms = dict(cfg['nms'])
    if kind_of(nms) != 'nms' or nms.get('class_agnostic') or 'max_num' in nms:
        raise ExportError(
            f"model.{place}.nms is {nms}; a file has dict(type='nms', iou_threshold=...) by classes alone"
        )


def _normalisation(model: nn.Module) -> tuple[list[float], list[float], bool, int]:
    """Mean, std, whether the network takes BGR, and what sides are multiples of."""
    steps = model.data_preprocessor
    mean, std = ([0.0] * 3, [1.0] * 3)
    if getattr(steps, '_enable_normalize', hasattr(steps, 'mean')):
        mean, std = steps.mean.flatten().tolist(), steps.std.flatten().tolist()
    options = getattr(steps, 'test_cfg', None) or {}
    if options.get('size') is not None:
        raise ExportError(f'model.data_preprocessor.test_cfg.size is {options["size"]}: use size_divisor instead')
    multiple = getattr(steps, 'pad_size_divisor', None) or options.get('size_divisor') or 1
    return mean, std, not getattr(steps, '_channel_conversion', getattr(steps, 'channel_conversion', False)), multiple


def _pipeline_steps(cfg: Config) -> dict[str, Any]:
    """Of the test pipeline."""
    found: dict[str, Any] = dict(scale=None, keep_ratio=False, exif=True)
    steps = next(pipelines(cfg.test_dataloader.dataset))
    for step in steps:
        step = step['loader'] if kind_of(step) == 'ReadSafely' else step
        kind, options = kind_of(step), {key: value for key, value in step.items() if key != 'type'}
        if kind == 'LoadImageFromFile':
            found['exif'] = options.pop('color_type', 'color') == 'color'
            options.pop('backend_args', None)
        elif kind == 'Resize':
            found.update(scale=[*options.pop('scale')], keep_ratio=bool(options.pop('keep_ratio', False)))
            if options.get('interpolation') == 'bilinear' and options.get('backend', 'cv2') == 'cv2':
                options = {}
        elif re.fullmatch('Load.*Annotations|Pack.*Inputs', kind):
            continue
        else:
            raise ExportError(f'the test pipeline has the step {kind}, which no file repeats: take it out, or {RAW}')
        if options:
            raise ExportError(f'{kind} of the test pipeline has {", ".join(options)}, which no file repeats: {RAW}')
    return found


def _class_steps(cfg: Config) -> tuple[dict[str, Any], list[float], list[float]]:
    """Of timm's transform for testing, and its mean and std for pixels up to 255."""
    transform, found = make_transform(cfg.test_dataloader.dataset.transform), dict(exif=False)
    mean, std = [0.0] * 3, [1.0] * 3
    for step in transform.transforms:
        kind = type(step).__name__
        if kind == 'Resize' and isinstance(step.size, int) and step.max_size is None:
            found.update(resize=step.size, interpolation=step.interpolation.value)
        elif kind == 'CenterCrop':
            found['crop'] = [*step.size]
        elif kind == 'Normalize':
            mean, std = ([255 * float(value) for value in values] for values in (step.mean, step.std))
        elif kind not in ('MaybeToTensor', 'ToTensor'):
            raise ExportError(f'the test transform has the step {kind}, which no file repeats')
    if not {'resize', 'crop'} <= found.keys():
        raise ExportError('the test transform lacks a resize or a centre crop, without which no file knows its size')
    return found, mean, std
