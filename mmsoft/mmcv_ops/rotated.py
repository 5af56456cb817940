"""Boxes (centre x, centre y, width, height, angle) turned by their angle in radians."""

import torch
from torch import Tensor

from mmsoft.mmcv_ops.tensors import CHUNK

_PAIR = 24 * 16  # values that one pair of boxes needs: 24 points, several times


def _corners(boxes: Tensor) -> Tensor:
    """(..., 5) -> (..., 4, 2), in the order in which the sides join them."""
    signs = boxes.new_tensor([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    dx, dy = (boxes[..., None, 2:4] * signs).unbind(-1)
    cos, sin = boxes[..., 4:5].cos(), boxes[..., 4:5].sin()
    return boxes[..., None, :2] + torch.stack((dx * cos - dy * sin, dx * sin + dy * cos), dim=-1)


def _cross(a: Tensor, b: Tensor) -> Tensor:
    return a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]


def _inside(points: Tensor, corners: Tensor) -> Tensor:
    """Which points (..., p, 2) lie in rectangles (..., 4, 2), borders included."""
    origin = corners[..., None, 0, :]
    across, down = corners[..., None, 1, :] - origin, corners[..., None, 3, :] - origin
    u, v = ((points - origin) * across).sum(-1), ((points - origin) * down).sum(-1)
    width, height = across.square().sum(-1), down.square().sum(-1)
    slack = 1e-9
    return (u >= -slack * width) & (u <= (1 + slack) * width) & (v >= -slack * height) & (v <= (1 + slack) * height)


def _intersections(a: Tensor, b: Tensor) -> Tensor:
    """Area that pairs of boxes (..., 5) share: the convex hull of crossing sides and of corners inside the other."""
    p, q = _corners(a), _corners(b)
    r, s = p.roll(-1, -2) - p, q.roll(-1, -2) - q
    gap = q[..., None, :, :] - p[..., :, None, :]
    slope = _cross(r[..., :, None, :], s[..., None, :, :])
    parallel = slope.abs() < 1e-14
    slope = slope.masked_fill(parallel, 1)
    t, u = _cross(gap, s[..., None, :, :]) / slope, _cross(gap, r[..., :, None, :]) / slope
    crosses = ~parallel & (t >= 0) & (t <= 1) & (u >= 0) & (u <= 1)
    crossings = p[..., :, None, :] + t[..., None] * r[..., :, None, :]
    points = torch.cat((crossings.flatten(-3, -2), p, q), dim=-2)
    valid = torch.cat((crosses.flatten(-2), _inside(p, q), _inside(q, p)), dim=-1)
    count = valid.sum(-1, keepdim=True)
    centre = (points * valid[..., None]).sum(-2, keepdim=True) / count[..., None].clamp(min=1)
    # points that do not count become the centre's double: they enclose nothing
    around = (points - centre) * valid[..., None]
    angle = torch.atan2(around[..., 1], around[..., 0]).masked_fill(~valid, torch.inf)
    first = angle.argmin(-1, keepdim=True)
    angle, order = angle.sort(-1)
    around = around.gather(-2, order[..., None].expand_as(around))
    # behind the last one comes the first again, so that the polygon closes
    start = ((points - centre) * valid[..., None]).gather(-2, first[..., None].expand(*first.shape, 2))
    around = torch.where(angle[..., None].isinf(), start, around)
    return 0.5 * _cross(around, around.roll(-1, -2)).sum(-1).abs()


def _overlaps(a: Tensor, b: Tensor, over_first: bool = False) -> Tensor:
    """IoU of pairs (..., 5), or the share of ``a`` that ``b`` covers; float64, as float32 loses thin overlaps."""
    a, b = torch.broadcast_tensors(a.double(), b.double())
    middle = (a[..., :2] + b[..., :2]) / 2
    a, b = (torch.cat((x[..., :2] - middle, x[..., 2:5]), dim=-1) for x in (a, b))
    shared = _intersections(a, b)
    areas = a[..., 2:4].prod(-1), b[..., 2:4].prod(-1)
    whole = areas[0] if over_first else areas[0] + areas[1] - shared
    return torch.where(torch.minimum(*areas) < 1e-14, 0, shared / whole.clamp(min=1e-14))


@torch.no_grad()
def box_iou_rotated(boxes1: Tensor, boxes2: Tensor, ious: Tensor, mode_flag: int, aligned: bool) -> None:
    """Fills ``ious`` (n * m, or n where aligned) with IoU (mode 0) or intersection over the first box (mode 1)."""
    if aligned:
        ious.copy_(_overlaps(boxes1, boxes2, mode_flag == 1))
        return
    step = max(1, CHUNK // (_PAIR * max(1, len(boxes2))))
    rows = [_overlaps(part[:, None], boxes2[None], mode_flag == 1) for part in boxes1.split(step)]
    ious.copy_(torch.cat(rows).flatten() if rows else ious)


@torch.no_grad()
def nms_rotated(
    dets: Tensor,
    scores: Tensor,
    order: Tensor,
    dets_sorted: Tensor,
    labels: Tensor,
    iou_threshold: float,
    multi_label: bool,
) -> Tensor:
    """Indices of the boxes kept, by falling score; with ``multi_label`` only boxes of one label (column 6) compete."""
    radius = dets[:, 2:4].square().sum(-1).sqrt() / 2
    kept = []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        far = (dets[order, :2] - dets[best, :2]).square().sum(-1).sqrt() > radius[order] + radius[best]
        rivals = ~far & (dets[order, 5] == dets[best, 5]) if multi_label else ~far
        gone = torch.zeros_like(rivals)
        gone[rivals] = _overlaps(dets[best, :5], dets[order[rivals], :5]) >= iou_threshold
        order = order[~gone]
    return torch.stack(kept) if kept else order
