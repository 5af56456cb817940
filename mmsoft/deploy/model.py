"""An exported model and its answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .pictures import PictureError, prepare, read_picture
from .runtimes import Runtime, open_file

# Pixels of a picture at which a file makes masks and label maps: a hundred masks take 5 bytes each of every pixel, and
# the scores of 150 classes 4 bytes each.
PASTED = 2**21


@dataclass
class Result:
    """What a model finds in a picture; what its task does not have is None.

    Args:
        size: (height, width) of the picture.
        labels: (n,) class numbers of the boxes; of a classifier all classes, the best first.
        scores: (n,) of these labels.
        boxes: (n, 4): x1, y1, x2, y2 in pixels of the picture.
        masks: (n, height, width) of bool.
        label_map: (height, width): the class of every pixel.
        classes: All names.
    """

    size: tuple[int, int]
    classes: Sequence[str] = field(repr=False)
    labels: np.ndarray | None = None
    scores: np.ndarray | None = None
    boxes: np.ndarray | None = None
    masks: np.ndarray | None = field(default=None, repr=False)
    label_map: np.ndarray | None = field(default=None, repr=False)

    @property
    def names(self) -> list[str] | None:
        """Those of the labels."""
        return None if self.labels is None else [self.classes[label] for label in self.labels]


def load(path: str | Path, runtime: str = 'onnxruntime', threads: int | None = None) -> 'Model':
    """The model of a file that ``mmsoft export`` wrote, run by ``onnxruntime`` or ``openvino``."""
    return Model(path, runtime, threads)


class Model:
    """Called with a picture it gives a :class:`Result`, with a list of pictures their results.

    ``about`` is what the file says of itself: task, classes, palette, preprocessing, precision, opset, mmsoft.
    """

    def __init__(
        self, path: str | Path, runtime: str | type[Runtime] = 'onnxruntime', threads: int | None = None
    ) -> None:
        self.runtime, self.about = open_file(path, runtime, threads)
        self.task, self.classes = self.about['task'], self.about['classes']
        self.steps = self.about['preprocessing']

    def __call__(self, pictures: Any, batch_size: int = 8) -> 'Result | list[Result]':
        """A picture is a path, an open file, one of Pillow, or an array (H, W, 3) of uint8 in BGR."""
        if isinstance(pictures, (list, tuple)):
            return list(self.stream(pictures, batch_size))
        return next(self.stream([pictures], 1))

    def stream(self, pictures: Sequence[Any], batch_size: int = 8) -> Iterator[Result]:
        """One result after the other; neighbours go together where they and what they are resized to are as large."""
        if batch_size < 1:
            raise ValueError(f'batch_size must be 1 or more; got {batch_size}')
        batch: list[np.ndarray] = []
        size = (0, 0)
        for picture in pictures:
            image = read_picture(picture, self.steps['exif'])
            prepared = self.prepare(image)
            if batch and (len(batch) == batch_size or image.shape[:2] != size or prepared.shape != batch[0].shape):
                yield from self.run(np.stack(batch), size)
                batch = []
            batch, size = [*batch, prepared], image.shape[:2]
        if batch:
            yield from self.run(np.stack(batch), size)

    def prepare(self, image: np.ndarray) -> np.ndarray:
        """What the network takes of RGB pixels (H, W, 3): (3, h, w) of float32 from 0 to 255."""
        prepared, least = prepare(image, self.steps), self.steps.get('least', 1)
        if min(prepared.shape[1:]) < least:
            raise PictureError(
                f'a picture of {image.shape[1]} x {image.shape[0]} becomes {prepared.shape[2]} x {prepared.shape[1]}; '
                f'this model takes sides of at least {least}'
            )
        return prepared

    def inputs(self, images: np.ndarray, size: tuple[int, ...]) -> dict[str, np.ndarray]:
        """What the file takes for prepared pictures (B, 3, h, w), all of which had the height and width ``size``."""
        return dict(images=images) if self.task == 'classes' else dict(images=images, size=np.array(size, np.int64))

    def run(self, images: np.ndarray, size: tuple[int, int]) -> Iterator[Result]:
        """The results of prepared pictures (B, 3, h, w), all of which had the height and width ``size``."""
        by_pixel = self.task in ('masks', 'labels')
        if by_pixel and len(images) > 1 and len(images) * size[0] * size[1] > PASTED:
            for image in images:
                yield from self.run(image[None], size)
            return
        asked = pasted_size(size) if by_pixel else size
        found = self.runtime.run(self.inputs(images, asked))
        for number in range(len(images)):
            result = self._result(found, number, asked)
            yield result if asked == size else _enlarged(result, size)

    def _result(self, found: Sequence[np.ndarray], number: int, size: tuple[int, int]) -> Result:
        result = Result((int(size[0]), int(size[1])), self.classes)
        if self.task == 'classes':
            result.labels = np.argsort(-found[0][number], kind='stable')
            result.scores = found[0][number][result.labels]
        elif self.task == 'labels':
            result.label_map = found[0][number]
        else:
            boxes, scores, labels, image, *masks = found
            mine = image == number
            result.boxes, result.scores, result.labels = boxes[mine], scores[mine], labels[mine]
            result.masks = masks[0][mine] if masks else None
        return result


def pasted_size(size: tuple[int, int]) -> tuple[int, int]:
    """The size at which a file makes masks and label maps: the picture's, or less where memory might not hold them."""
    factor = (PASTED / (size[0] * size[1])) ** 0.5
    return size if factor >= 1 else (max(int(size[0] * factor), 1), max(int(size[1] * factor), 1))


def _enlarged(result: Result, size: tuple[int, int]) -> Result:
    """Of the same picture at ``size``: boxes as exact as before, of masks and label maps the nearest pixel."""
    (height, width), smaller = size, result.size
    rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, smaller, strict=True))
    if result.label_map is not None:
        result.label_map = result.label_map[rows[:, None], columns]
    else:
        result.boxes = result.boxes * np.float32([width / smaller[1], height / smaller[0]] * 2)
        result.masks = result.masks[:, rows[:, None], columns]
    result.size = int(height), int(width)
    return result
