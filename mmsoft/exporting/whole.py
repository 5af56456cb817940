"""A model from pixels to answers as one module without a question that depends on values, for torch.export."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .boxes import best, by_class, decode, paste, regions, suppress, take, with_area


class Whole(nn.Module):
    """Pixels (B, 3, H, W), RGB from 0 to 255, to answers.

    What lies beyond 0 and 255 counts as these. Networks of half precision are given half; what follows them is float32.
    """

    outputs: tuple[str, ...] = ()  # their names; a raw network has as many as its head

    def __init__(self, model: nn.Module, mean: list[float], std: list[float], bgr: bool, multiple: int = 1) -> None:
        super().__init__()
        self.model, self.bgr, self.multiple = model, bgr, multiple
        self.register_buffer('mean', torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer('std', torch.tensor(std).view(-1, 1, 1))

    def normalised(self, images: Tensor) -> Tensor:
        """With zeros at the right and bottom up to multiples of ``multiple``."""
        images = images.clamp(0, 255)
        if self.bgr:
            images = images.flip(1)
        images = (images - self.mean) / self.std
        if self.multiple > 1:
            lack = [((side - 1) // self.multiple + 1) * self.multiple - side for side in images.shape[-2:]]
            images = F.pad(images, (0, lack[1], 0, lack[0]))
        return images.to(next(self.model.parameters()).dtype)


class RawNetwork(Whole):
    """Gives all that the dense head makes of the maps, in its own order, before any of it is decoded."""

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.model.extract_feat(self.normalised(images))
        for name in HEADS:
            if isinstance(head := getattr(self.model, name, None), nn.Module):
                return tuple(_tensors(head(features)))
        return tuple(features)


HEADS = ('bbox_head', 'mask_head', 'rpn_head', 'decode_head')


def _tensors(value: Any) -> Iterator[Tensor]:
    """Of nested lists, in order."""
    if isinstance(value, Tensor):
        yield value.float()
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)


class WholeClassifier(Whole):
    """Gives probabilities (B, classes)."""

    outputs = ('scores',)

    def forward(self, images: Tensor) -> Tensor:
        return self.model.backbone(self.normalised(images)).float().softmax(-1)


class WholeSegmentor(Whole):
    """Gives labels (B, height, width) of the picture's own size, ``size`` (2,)."""

    outputs = ('labels',)

    def forward(self, images: Tensor, size: Tensor) -> Tensor:
        head = self.model.decode_head
        padded, (rows, columns) = self.normalised(images), images.shape[-2:]
        logits = head(self.model.extract_feat(padded)).float()
        options = dict(mode='bilinear', align_corners=head.align_corners)
        logits = F.interpolate(logits, size=padded.shape[-2:], **options)[..., :rows, :columns]
        height, width = size.unbind()
        sides = height.item(), width.item()
        for side in sides:
            torch._check(side >= 1)
        return F.interpolate(logits, size=sides, **options).argmax(1)


class WholeDetector(Whole):
    """Gives boxes (n, 4) in pixels of the picture's own size, ``size`` (2,), scores, labels and image numbers (n,)."""

    outputs = ('boxes', 'scores', 'labels', 'image')

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.suppress = suppress

    def found(self, boxes: Tensor, scores: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """Of (B, k) those with a score, one image after the other."""
        images, index = scores.nonzero().unbind(1)
        return boxes[images, index], scores[images, index], labels[images, index], images

    def scaled(self, boxes: Tensor, images: Tensor, size: Tensor) -> Tensor:
        ratio = torch.stack([size[axis] / images.shape[axis - 2] for axis in (1, 0, 1, 0)])
        return boxes * ratio

    def candidates(self, head: nn.Module, maps: Any, cfg: Any, shape: tuple[int, int]) -> list[tuple[Tensor, ...]]:
        """The best of each level: boxes (B, k, 4), scores and labels (B, k)."""
        found, coder, generator = [], head.bbox_coder, head.prior_generator
        for level, (logits, deltas) in enumerate(zip(*maps, strict=True)):
            anchors = generator.single_level_grid_priors(
                logits.shape[-2:], level, dtype=torch.float32, device=logits.device
            )
            scores = logits.float().sigmoid().permute(0, 2, 3, 1).flatten(1)  # (B, n * classes)
            scores = torch.where(scores > cfg.get('score_thr', 0), scores, 0)
            scores, index = best(scores, cfg.nms_pre)
            place, labels = index // head.cls_out_channels, index % head.cls_out_channels
            deltas = take(deltas.float().permute(0, 2, 3, 1).reshape(logits.shape[0], -1, 4), place)
            boxes = decode(anchors[place], deltas, coder, *shape)
            found.append((boxes, with_area(boxes, scores, cfg.get('min_bbox_size', -1)), labels))
        return found


class WholeSingleStage(WholeDetector):
    """RetinaNet and other detectors of anchors with sigmoid scores."""

    def forward(self, images: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        model, head = self.model, self.model.bbox_head
        cfg = head.test_cfg
        levels = self.candidates(head, head(model.extract_feat(self.normalised(images))), cfg, images.shape[-2:])
        boxes, scores, labels = (torch.cat(parts, 1) for parts in zip(*levels, strict=True))
        kept = self.suppress(boxes, by_class(scores, labels, head.num_classes), cfg.nms.iou_threshold)
        scores, index = best(kept.amax(1), cfg.max_per_img)
        boxes, scores, labels, numbers = self.found(take(boxes, index), scores, labels.gather(1, index))
        return self.scaled(boxes, images, size), scores, labels, numbers


class WholeTwoStage(WholeDetector):
    """Faster R-CNN and Mask R-CNN; the latter gives masks (n, height, width) as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self.model.roi_head.with_mask:
            self.outputs = (*self.outputs, 'masks')

    def forward(self, images: Tensor, size: Tensor) -> tuple[Tensor, ...]:
        model, shape = self.model, images.shape[-2:]
        features = model.extract_feat(self.normalised(images))
        proposals = self._proposals(features, shape)
        boxes, scores, labels = self._classified(features, proposals, shape)
        boxes, scores, labels, numbers = self.found(boxes, scores, labels)
        own = self.scaled(boxes, images, size)
        if not model.roi_head.with_mask:
            return own, scores, labels, numbers
        return own, scores, labels, numbers, self._masks(features, boxes, own, labels, numbers, size)

    def _proposals(self, features: Any, shape: tuple[int, int]) -> Tensor:
        """(B, k, 4); those that are none have no area."""
        head = self.model.rpn_head
        cfg = self.model.test_cfg.rpn
        levels = self.candidates(head, head(features), cfg, shape)
        boxes, scores = (torch.cat(parts, 1) for parts in list(zip(*levels, strict=True))[:2])
        level = torch.arange(len(levels), device=boxes.device).repeat_interleave(cfg.nms_pre).expand(scores.shape)
        kept = self.suppress(boxes, by_class(scores, level, len(levels)), cfg.nms.iou_threshold)
        scores, index = best(kept.amax(1), cfg.max_per_img)
        return torch.where(scores.unsqueeze(-1) > 0, take(boxes, index), 0.0)

    def _classified(self, features: Any, proposals: Tensor, shape: tuple[int, int]) -> tuple[Tensor, ...]:
        """Boxes (B, k, 4), scores and labels (B, k), the best of all classes."""
        roi, cfg = self.model.roi_head, self.model.test_cfg.rcnn
        count, classes = proposals.shape[1], roi.bbox_head.num_classes
        logits, deltas = roi.bbox_head(self._regions(features, _numbered(proposals), roi.bbox_roi_extractor))
        scores = logits.float().softmax(-1).unflatten(0, (-1, count))[..., :-1]  # the last is the background
        exists = (proposals[..., 2:] > proposals[..., :2]).all(-1, keepdim=True)
        scores = torch.where((scores > cfg.score_thr) & exists, scores, 0).transpose(1, 2)  # (B, classes, k)
        deltas = deltas.float().view(-1, count, deltas.shape[1] // 4, 4).expand(-1, -1, classes, -1)
        boxes = decode(proposals.unsqueeze(2), deltas, roi.bbox_head.bbox_coder, *shape).transpose(1, 2)
        kept = self.suppress(boxes.flatten(0, 1), scores.flatten(0, 1).unsqueeze(1), cfg.nms.iou_threshold)
        scores, index = best(kept.view(-1, classes * count), cfg.max_per_img)
        return take(boxes.flatten(1, 2), index), scores, index // count

    def _regions(self, features: Any, boxes: Tensor, extractor: nn.Module) -> Tensor:
        """In the network's dtype."""
        return regions(features, boxes, extractor).to(features[0].dtype)

    def _masks(
        self, features: Any, boxes: Tensor, own: Tensor, labels: Tensor, numbers: Tensor, size: Tensor
    ) -> Tensor:
        roi = self.model.roi_head
        boxes = torch.cat((numbers.unsqueeze(1).float(), boxes), 1)
        masks = roi.mask_head(self._regions(features, boxes, roi.mask_roi_extractor)).float().sigmoid()
        if not roi.mask_head.class_agnostic:
            masks = masks.gather(1, labels.view(-1, 1, 1, 1).expand(-1, 1, *masks.shape[2:]))
        return paste(masks[:, 0], own, *size.unbind()) >= self.model.test_cfg.rcnn.mask_thr_binary


def _numbered(boxes: Tensor) -> Tensor:
    """Boxes (B, k, 4) -> (B * k, 5), the image in front."""
    number = torch.arange(boxes.shape[0], device=boxes.device).view(-1, 1, 1).expand(-1, boxes.shape[1], 1)
    return torch.cat((number.to(boxes.dtype), boxes), -1).flatten(0, 1)
