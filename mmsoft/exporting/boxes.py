"""What follows a detector's network, for graphs whose sizes are symbols: shapes stay, and a score of 0 is no box."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def decode(anchors: Tensor, deltas: Tensor, coder: object, height: int, width: int) -> Tensor:
    """Boxes (..., 4) of a ``DeltaXYWHBBoxCoder``: anchors and deltas (..., 4), clipped to the picture."""
    deltas = deltas * deltas.new_tensor(coder.stds) + deltas.new_tensor(coder.means)
    centre, size = (anchors[..., :2] + anchors[..., 2:]) / 2, anchors[..., 2:] - anchors[..., :2]
    bound = abs(torch.tensor(16 / 1000).log().item())  # as mmdet bounds the ratio of sides
    centre, size = centre + size * deltas[..., :2], size * deltas[..., 2:].clamp(-bound, bound).exp()
    boxes = torch.cat((centre - size / 2, centre + size / 2), -1)
    return torch.minimum(boxes.clamp(min=0), _corner(boxes, height, width)) if coder.clip_border else boxes


def _corner(like: Tensor, height: int, width: int) -> Tensor:
    """(w, h, w, h)"""
    return torch.stack([like.new_full((), width), like.new_full((), height)] * 2)


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best of scores (B, n), and where they are; as if zeros followed where n is less."""
    found, index = F.pad(scores, (0, count)).topk(count)
    return found, torch.where(index < scores.shape[1], index, 0)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (B, n, C) at index (B, k): (B, k, C)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def by_class(scores: Tensor, labels: Tensor, count: int) -> Tensor:
    """Scores and labels (B, n) -> (B, count, n), 0 in other classes."""
    classes = torch.arange(count, device=scores.device).view(1, -1, 1)
    return torch.where(labels.unsqueeze(1) == classes, scores.unsqueeze(1), 0)


def with_area(boxes: Tensor, scores: Tensor, least: float) -> Tensor:
    """Scores (B, n), 0 where a side of the box (B, n, 4) is not above ``least``; below 0 all count."""
    if least < 0:
        return scores
    return torch.where((boxes[..., 2:] - boxes[..., :2] > least).all(-1), scores, 0)


def suppress_by_torchvision(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Scores (G, C, n) after non-maximum suppression in each class and group, of boxes (G, n, 4): the others are 0."""
    from torchvision.ops import nms

    group, kind, place = scores.nonzero().unbind(1)
    # classes and groups lie far from each other: in float64, where that costs no digit of a box
    apart = (group * scores.shape[1] + kind).double() * (boxes.max().double() - boxes.min() + 1)
    kept = nms(boxes[group, place].double() + apart[:, None], scores[group, kind, place].double(), threshold)
    group, kind, place = group[kept], kind[kept], place[kept]
    return torch.zeros_like(scores).index_put((group, kind, place), scores[group, kind, place])


@torch.library.custom_op('mmsoft::suppress', mutates_args=())
def suppress(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """:func:`suppress_by_torchvision`; ONNX has an operator for it, see :func:`onnx_suppress`."""
    return suppress_by_torchvision(boxes, scores, threshold)


@suppress.register_fake
def _(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    return torch.empty_like(scores)


def onnx_suppress(boxes, scores, threshold: float):
    """:func:`suppress` in ONNX's operators."""
    from onnxscript import opset18 as op

    most = op.Constant(value_int=2**31 - 1)
    found = op.NonMaxSuppression(
        boxes, scores, most, op.Constant(value_float=threshold), op.Constant(value_float=0.0)
    )  # (k, 3): group, class, place
    return op.ScatterND(op.Sub(scores, scores), found, op.GatherND(scores, found))


def onnx_floor_divide(dividend, divisor):
    """Of integers, in operators that every runtime has for them: ONNX divides towards 0."""
    from onnxscript import opset18 as op

    quotient = op.Div(dividend, divisor)
    left = op.Mul(op.Sub(dividend, op.Mul(quotient, divisor)), divisor)  # below 0 where the signs differ
    return op.Add(quotient, op.Min(op.Sign(left), op.Sub(divisor, divisor)))


def regions(features: Sequence[Tensor], boxes: Tensor, extractor: object) -> Tensor:
    """Features (R, C, s, s) of boxes (R, 5) with the image in front, each from the level that suits its size.

    On the other levels it is shrunk to nothing, which costs nothing and gives zeros.
    """
    from torchvision.ops import roi_align

    size = ((boxes[:, 3] - boxes[:, 1]) * (boxes[:, 4] - boxes[:, 2])).sqrt()
    level = torch.floor(torch.log2(size / extractor.finest_scale + 1e-6)).clamp(0, extractor.num_inputs - 1)
    total = None
    for number, layer in enumerate(extractor.roi_layers):
        here = (level == number).unsqueeze(1)
        corners = torch.where(here, boxes[:, 1:], 0.0)
        found = roi_align(
            features[number].float(),
            torch.cat((boxes[:, :1], corners), 1),
            layer.output_size,
            layer.spatial_scale,
            layer.sampling_ratio or -1,
            layer.aligned,
        )
        found = torch.where(here[:, :, None, None], found, 0.0)
        total = found if total is None else total + found
    return total


def paste(masks: Tensor, boxes: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Masks (n, s, s) in their boxes (n, 4) of a picture: (n, height, width), bilinear, zero outside."""
    rows = _spread(boxes[:, 1], boxes[:, 3], height, masks.shape[1])
    columns = _spread(boxes[:, 0], boxes[:, 2], width, masks.shape[2])
    return rows @ (masks @ columns.transpose(1, 2))


def _spread(first: Tensor, last: Tensor, size: Tensor, cells: int) -> Tensor:
    """What each pixel of a side takes from each cell between ``first`` and ``last`` (n,): (n, size, cells)."""
    length = size.item()
    torch._check(length >= 1)
    pixels = torch.arange(length, device=first.device) + 0.5
    places = (pixels - first[:, None]) / (last - first).clamp(min=1e-6)[:, None] * cells - 0.5  # in cells
    return (1 - (places.unsqueeze(-1) - torch.arange(cells, device=first.device)).abs()).clamp(min=0)
