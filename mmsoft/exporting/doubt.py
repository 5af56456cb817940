"""What a checkpoint leaves to rounding: where a file may answer otherwise and be as right."""

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou

from mmsoft.deploy import Result
from mmsoft.engine.predictor import Prediction, Predictor

OVERLAP = 0.05  # of suppression's threshold: what boxes some pixels apart may differ in overlap
MARGIN = 0.02  # of a mask's threshold, at most
EXCHANGED = 0.25  # of all boxes: more are no rounding


class Doubt:
    """About one picture.

    Non-maximum suppression keeps the first of two boxes with almost equal scores, and with it goes what each of them
    alone would suppress. So the boxes of a file may be others than the checkpoint's, as long as they are among its
    :attr:`candidates`, and a box that is missing overlaps one that was found.

    Args:
        tolerance: Of the precision: pixels of boxes, scores, share.
        zoom: Pixels of what the network sees to one of the picture.
    """

    def __init__(self, predictor: Predictor, image: np.ndarray, tolerance: tuple[float, float, float], zoom: float):
        self.predictor, self.image, self.zoom = predictor, image, zoom
        self.pixels, self.score, _ = tolerance
        model = predictor.model
        roi = getattr(model, 'roi_head', None)
        self.heads = [model.bbox_head] if roi is None else [model.rpn_head, roi]
        self.overlap = self.heads[-1].test_cfg.nms['iou_threshold'] - OVERLAP

    @cached_property
    def candidates(self) -> Prediction:
        """All boxes from which suppression chooses, without masks."""
        changes: list[tuple[Any, str, Any]] = []
        for head in self.heads:
            nms = dict(head.test_cfg.nms, iou_threshold=1.0)
            changes += [(head.test_cfg, 'nms', nms), (head.test_cfg, 'max_per_img', 100_000)]
        if getattr(self.heads[-1], 'with_mask', False):
            changes.append((self.heads[-1], 'mask_head', None))
        with changed(changes):
            return self.predictor(self.image)

    @cached_property
    def decided(self) -> np.ndarray:
        """(n, H, W): pixels that are in a mask, or not, whatever rounding does to their scores."""
        cfg, margin = self.heads[-1].test_cfg, min(self.score, MARGIN)
        found = []
        for threshold in (cfg.mask_thr_binary - margin, cfg.mask_thr_binary + margin):
            with changed([(cfg, 'mask_thr_binary', threshold)]):
                found.append(self.predictor(self.image).masks)
        return found[0] == found[1]

    def is_candidate(self, theirs: Result, number: int) -> bool:
        """Whether the checkpoint knows a box of the file, too."""
        known = self.candidates
        near = np.abs(known.boxes - theirs.boxes[number]).max(1) * self.zoom <= self.pixels
        equal = np.abs(known.scores - theirs.scores[number]) <= self.score
        return bool((near & equal & (known.labels == theirs.labels[number])).any())

    def is_suppressed(self, mine: Prediction, number: int, theirs: Result) -> bool:
        """Whether a box of the file stands for one of the checkpoint."""
        better = (theirs.labels == mine.labels[number]) & (theirs.scores >= mine.scores[number] - self.score)
        return bool((better & (overlaps(mine.boxes[number], theirs.boxes) >= self.overlap)).any())


@contextlib.contextmanager
def changed(values: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Let attributes of objects have other values for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in values]
    try:
        for owner, name, value in values:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def overlaps(box: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """Intersections over unions (n,) of a box (4,) with boxes (n, 4)."""
    return box_iou(torch.from_numpy(box[None]), torch.from_numpy(boxes))[0].numpy()
