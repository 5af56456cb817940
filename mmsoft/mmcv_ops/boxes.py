"""Suppression of overlapping boxes (x1, y1, x2, y2), and of lanes."""

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import nms as torchvision_nms

from mmsoft.mmcv_ops.tensors import wide

LANE_ROWS = 72  # a lane is (score, score, start, x, length) and its place in each of 72 rows of the image


def nms(boxes: Tensor, scores: Tensor, iou_threshold: float, offset: int) -> Tensor:
    """Indices of the boxes kept, by falling score; sides are ``x2 - x1 + offset`` long."""
    boxes, scores = wide(boxes), wide(scores)
    if offset:
        boxes = torch.cat((boxes[:, :2], boxes[:, 2:] + offset), dim=1)
    return torchvision_nms(boxes, scores.to(boxes.dtype), iou_threshold)


def _overlaps(boxes: np.ndarray, i: int, others: slice | np.ndarray, offset: int) -> np.ndarray:
    """IoU of box ``i`` with others."""
    low = np.maximum(boxes[others, :2], boxes[i, :2])
    high = np.minimum(boxes[others, 2:], boxes[i, 2:])
    shared = (high - low + offset).clip(min=0).prod(axis=1)
    areas = (boxes[others, 2:] - boxes[others, :2] + offset).prod(axis=1)
    with np.errstate(divide='ignore', invalid='ignore'):  # of two empty boxes: not a number, which suppresses nothing
        return shared / ((boxes[i, 2:] - boxes[i, :2] + offset).prod() + areas - shared)


def _decay(overlaps: np.ndarray, method: int, iou_threshold: float, sigma: float) -> np.ndarray:
    """Factor of the scores: 0 naive, 1 linear, 2 Gaussian."""
    if method == 2:
        return np.exp(-(overlaps**2) / sigma)
    return np.where(overlaps >= iou_threshold, 0 if method == 0 else 1 - overlaps, 1).astype(overlaps.dtype)


def softnms(
    boxes: Tensor,
    scores: Tensor,
    dets: Tensor,
    iou_threshold: float,
    sigma: float,
    min_score: float,
    method: int,
    offset: int,
) -> Tensor:
    """Scores fall by overlap with better boxes; those below ``min_score`` leave. Fills the first rows of ``dets``."""
    # one table, so that boxes, scores and indices swap together
    table = np.concatenate((wide(boxes).numpy(), wide(scores).numpy()[:, None]), axis=1)
    indices = np.arange(len(table))
    count, i = len(table), 0
    while i < count:
        best = i + table[i:count, 4].argmax()
        table[[i, best]], indices[[i, best]] = table[[best, i]], indices[[best, i]]
        rest = slice(i + 1, count)
        table[rest, 4] *= _decay(_overlaps(table[:, :4], i, rest, offset), method, iou_threshold, sigma)
        good = table[rest, 4] >= min_score
        kept = i + 1 + int(good.sum())
        # holes are filled from the end, which is the order that mmcv has among equal scores
        holes = i + 1 + np.flatnonzero(~good[: kept - i - 1])
        moved = (kept + np.flatnonzero(good[kept - i - 1 :]))[::-1]
        table[holes], indices[holes] = table[moved], indices[moved]
        count, i = kept, i + 1
    dets[:count] = torch.from_numpy(table[:count]).to(dets)
    return torch.from_numpy(indices[:count])


def nms_match(dets: Tensor, iou_threshold: float) -> list[list[int]]:
    """Groups of indices: each box kept, then those that it suppresses, by falling score. ``dets``: (n, 5)."""
    order = wide(dets[:, 4]).sort(descending=True, stable=True).indices.numpy()
    boxes, groups = wide(dets[:, :4]).numpy(), []
    while len(order):
        best, order = order[0], order[1:]
        gone = _overlaps(boxes, best, order, 0) >= iou_threshold
        groups.append([int(best), *order[gone].tolist()])
        order = order[~gone]
    return groups


def line_nms_forward(lanes: Tensor, scores: Tensor, overlap: float, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of lanes (n, 77) kept, filled up with zeros; how many; and by which of them (from 1) each was taken."""
    table = wide(lanes)
    start = (table[:, 2] * (LANE_ROWS - 1) + 0.5).int()
    end = start + (table[:, 4] - 1 + 0.5).floor().int()
    rows = torch.arange(LANE_ROWS, device=lanes.device)
    order = scores.sort(descending=True, stable=True).indices
    kept, parents = [], torch.zeros(len(lanes), dtype=torch.long, device=lanes.device)
    while len(order) and len(kept) < top_k:
        best, order = order[0], order[1:]
        first, last = start[order].maximum(start[best]), end[order].minimum(end[best]).clamp(max=LANE_ROWS - 1)
        shared = (rows >= first[:, None]) & (rows <= last[:, None])
        distance = ((table[order, 5:] - table[best, 5:]).abs() * shared).sum(dim=1)
        gone = (last >= first) & (first >= 0) & (distance < overlap * (last - first + 1))
        kept.append(best)
        parents[best] = parents[order[gone]] = len(kept)
        order = order[~gone]
    keep = torch.zeros(len(lanes), dtype=torch.long, device=lanes.device)
    if kept:
        keep[: len(kept)] = torch.stack(kept)
    return keep, torch.tensor(len(kept), device=lanes.device), parents
