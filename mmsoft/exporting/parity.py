"""Whether a file answers as its checkpoint does: both run on the same pictures, and their answers are compared."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from mmsoft.datasets.miniature import scenes
from mmsoft.deploy import Model, Result
from mmsoft.deploy.model import pasted_size
from mmsoft.deploy.runtimes import Runtime
from mmsoft.engine.predictor import Prediction, Predictor

from .building import ExportError
from .doubt import EXCHANGED, Doubt

# Of each precision: pixels of boxes, scores, and the share that has to agree (boxes found, labels, masks, pixels).
TOLERANCES = dict(fp32=(0.1, 0.001, 0.999), fp16=(2.0, 0.02, 0.98), int8=(40.0, 0.3, 0.5))
NEAR = 40  # pixels: boxes farther apart are not the same one
SHAPES = ((1.0, 1.0), (0.6, 1.0), (1.0, 0.4))  # of height and width: three sizes of each picture
DRAWN = (240, 320)


@dataclass
class Row:
    """How far the answers for a picture are apart; None is what the task does not have."""

    size: tuple[int, int]
    boxes: float | None = None  # the largest difference, in pixels of what the network sees
    scores: float | None = None
    labels: float | None = (
        None  # share of boxes that the file finds with the same label, of equal pixels, of best classes
    )
    masks: float | None = None  # mean IoU

    def worst_of(self, tolerance: tuple[float, float, float]) -> str:
        """The name of a column that is beyond the tolerance, or ''."""
        pixels, score, share = tolerance
        bounds = dict(boxes=-pixels, scores=-score, labels=share, masks=share)
        for name, bound in bounds.items():
            value = getattr(self, name)
            if value is not None and (-value if bound < 0 else value) < bound:
                return name
        return ''


def pictures_of(files: Sequence[Any]) -> list[np.ndarray]:
    """BGR pixels of the files, or of drawn scenes, each at three sizes, none larger than what masks are pasted to."""
    import cv2

    from mmsoft.deploy import read_picture

    images = [read_picture(file)[..., ::-1] for file in files] or [s.image for s in scenes(2, DRAWN, (19,))]
    whole = [pasted_size(image.shape[:2]) for image in images]
    sizes = [(max(int(rows * h), 16), max(int(columns * w), 16)) for rows, columns in whole for h, w in SHAPES]
    repeated = [image for image in images for _ in SHAPES]
    return [cv2.resize(np.ascontiguousarray(i), size[::-1]) for i, size in zip(repeated, sizes, strict=True)]


def compare(predictor: Predictor, model: Model, images: Sequence[np.ndarray], tolerance: tuple) -> Iterator[Row]:
    """A row a picture."""
    for image in images:
        mine, theirs = predictor(image), model(image)
        zoom = min(model.prepare(image[..., ::-1]).shape[1:]) / min(image.shape[:2])
        row = compare_answers(mine, theirs, tolerance, zoom)
        if theirs.boxes is not None and row.worst_of(tolerance):
            row = compare_answers(mine, theirs, tolerance, zoom, Doubt(predictor, image, tolerance, zoom))
        yield row


def compare_raw(network: nn.Module, runtime: Runtime, least: int) -> Iterator[Row]:
    """A row a size: the largest difference of an output, as a share of the output's largest value."""
    for sides in [(128, 160), (96, 224), (200, 97)]:
        size = max(sides[0], least), max(sides[1], least)
        images = torch.rand(1, 3, *size, generator=torch.Generator().manual_seed(0)) * 255
        with torch.no_grad():
            expected = [y.numpy() for y in network(images)]
        found = runtime.run(dict(images=images.numpy()))
        apart = [np.abs(x - y).max() / max(np.abs(y).max(), 1e-6) for x, y in zip(found, expected, strict=True)]
        yield Row(size, scores=float(max(apart)))


def compare_answers(
    mine: Prediction, theirs: Result, tolerance: tuple, zoom: float = 1.0, doubt: Doubt | None = None
) -> Row:
    """The checkpoint's answer and the file's; with ``doubt`` boxes and pixels that rounding decides may differ."""
    if theirs.label_map is not None:
        same = mine.label_map == theirs.label_map
        return Row(theirs.size, labels=float(same.mean()), masks=_mean_iou(mine.label_map, theirs.label_map))
    if theirs.boxes is None:
        order = np.argsort(mine.labels), np.argsort(theirs.labels)
        apart = np.abs(mine.scores[order[0]] - theirs.scores[order[1]]).max()
        return Row(theirs.size, scores=float(apart), labels=float(mine.labels[0] == theirs.labels[0]))
    return _compare_boxes(mine, theirs, tolerance, zoom, doubt)


def _compare_boxes(mine: Prediction, theirs: Result, tolerance: tuple, zoom: float, doubt: Doubt | None) -> Row:
    """Boxes with the same label that lie next to each other belong together; others may have been exchanged."""
    pairs = _pairs(mine, theirs, tolerance, zoom)
    if doubt:
        pixels, score, _ = tolerance
        pairs = [
            (i, j, apart)
            for i, j, apart in pairs
            if apart <= pixels and abs(mine.scores[i] - theirs.scores[j]) <= score
        ]
    left, right = ([pair[side] for pair in pairs] for side in (0, 1))
    alone = (
        [i for i in range(len(mine.boxes)) if i not in left],
        [j for j in range(len(theirs.boxes)) if j not in right],
    )
    least = float(min(mine.scores, default=0.0)) + tolerance[1]  # others may fall below a threshold, or behind the last
    missing = [i for i in alone[0] if mine.scores[i] > least]
    added = [j for j in alone[1] if theirs.scores[j] > least]
    count = max(len(mine.boxes) + len(theirs.boxes), 1)
    if doubt and len(alone[0]) + len(alone[1]) > EXCHANGED * count:
        missing, added = alone
    elif doubt:
        missing = [i for i in missing if not doubt.is_suppressed(mine, i, theirs)]
        added = [j for j in added if not doubt.is_candidate(theirs, j)]
    row = Row(theirs.size, 0.0, 0.0, 1 - (len(missing) + len(added)) / count, None if theirs.masks is None else 1.0)
    if pairs:
        row.boxes = float(max(apart for *_, apart in pairs))
        row.scores = float(np.abs(mine.scores[left] - theirs.scores[right]).max())
        if theirs.masks is not None:
            decided = doubt.decided[left] if doubt else True
            one, other = mine.masks[left] & decided, theirs.masks[right] & decided
            row.masks = float(np.mean(((one & other).sum((1, 2)) + 1) / ((one | other).sum((1, 2)) + 1)))
    return row


def _pairs(mine: Prediction, theirs: Result, tolerance: tuple, zoom: float) -> list[tuple[int, int, float]]:
    """Numbers of boxes that belong together, one to one, and how many pixels they are apart."""
    pixels, score, _ = tolerance
    pairs: list[tuple[int, int, float]] = []
    free = np.ones(len(theirs.boxes), bool)
    for number, (box, label) in enumerate(zip(mine.boxes, mine.labels, strict=True)):
        apart = np.abs(theirs.boxes - box).max(1) * zoom
        apart[(theirs.labels != label) | ~free] = np.inf
        apart += 100 * (np.abs(theirs.scores - mine.scores[number]) > max(score, 0.01))  # the same place, another box
        best = int(apart.argmin()) if len(apart) else -1
        if best >= 0 and apart[best] < min(20 * pixels, NEAR):
            pairs.append((number, best, float(apart[best])))
            free[best] = False
    return pairs


def _mean_iou(a: np.ndarray, b: np.ndarray) -> float:
    classes = np.union1d(a, b)
    return float(np.mean([((a == c) & (b == c)).sum() / ((a == c) | (b == c)).sum() for c in classes]))


def table(rows: Sequence[Row]) -> str:
    """Columns that the task has."""
    names = dict(boxes='boxes, px', scores='scores', labels='labels', masks='mask IoU')
    kept = {name: title for name, title in names.items() if any(getattr(row, name) is not None for row in rows)}
    lines = [f'{"picture":>12}  ' + '  '.join(f'{title:>9}' for title in kept.values())]
    for row in rows:
        values = '  '.join(f'{getattr(row, name):9.5f}' for name in kept)
        lines.append(f'{row.size[1]:>5} x {row.size[0]:<4}  {values}')
    return '\n'.join(lines)


def check(rows: Sequence[Row], precision: str, tolerances: Mapping[str, tuple] = TOLERANCES) -> None:
    """Raise if a row is beyond the tolerance of the precision."""
    for row in rows:
        if name := row.worst_of(tolerances[precision]):
            pixels, score, share = tolerances[precision]
            raise ExportError(
                f'{name} of the file and of the checkpoint differ too much on {row.size[1]} x {row.size[0]}: '
                f'{getattr(row, name):.5f}, where {precision} allows {pixels} px of boxes, {score} of scores and asks '
                f'for {share:.1%} agreement; nothing was written'
            )
