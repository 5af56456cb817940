"""Samples of detectors and segmentors drawn on their images."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import mmcv
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from mmsoft.files import shown

from .pictures import write_picture

CELL = 480  # longest side of a cell of a contact sheet
TITLE, GAP = 24, 4  # height of a title, space between cells
LEAST_WIDTH = 160  # of a picture that gets its class as a title


def draw_sample(
    image: np.ndarray, sample: Any, meta: Mapping[str, Any], score_thr: float = 0.3, truth: bool = False
) -> np.ndarray:
    """The BGR ``image`` (H, W, 3) with the predictions of a sample of any kind, or its ground truth.

    ``meta`` holds the data set's ``classes`` and, where it has colours of its own, ``palette``. This is for a sample
    without its config; where that is at hand, the record of its task says who draws.
    """
    draw = dict(ClassSample=draw_class, SegDataSample=draw_label_map).get(type(sample).__name__, draw_instances)
    return draw(image, sample, meta, score_thr, truth)


def draw_instances(
    image: np.ndarray, sample: Any, meta: Mapping[str, Any], score_thr: float = 0.3, truth: bool = False
) -> np.ndarray:
    """Boxes and masks, with classes and scores; or the segments of a panoptic model.

    Maps of stuff beside boxes, as HTC learns them, are left out: their labels are none of the data set's classes.
    """
    from mmdet.visualization import DetLocalVisualizer

    sample = sample.cpu()
    whole_labels(sample)
    if 'pred_panoptic_seg' in sample:
        from mmdet.evaluation.functional import INSTANCE_OFFSET

        found = (sample.pred_panoptic_seg.sem_seg % INSTANCE_OFFSET < len(meta['classes'])).any()
        # one over the other cannot be read, and mmdet fails where there is no segment
        unread = 'pred_instances' if found else 'pred_panoptic_seg'
        if unread in sample:
            delattr(sample, unread)
    if 'gt_sem_seg' in sample and 'stuff_classes' not in meta:
        del sample.gt_sem_seg
    if truth and hasattr(sample.gt_instances.get('bboxes'), 'tensor'):
        sample.gt_instances.bboxes = sample.gt_instances.bboxes.tensor
    visualizer = DetLocalVisualizer(name='drawing')  # built directly, it does not become the current one
    return _draw_by(visualizer, image, sample, meta, plain_text, truth, pred_score_thr=score_thr)


def whole_labels(sample: Any) -> None:
    """Let labels of boxes be whole numbers: CrowdDet's are floats, which index no list of names or colours."""
    found = getattr(sample, 'pred_instances', None)
    if found is not None and 'labels' in found:
        found.labels = found.labels.long()


def draw_label_map(
    image: np.ndarray, sample: Any, meta: Mapping[str, Any], score_thr: float = 0.3, truth: bool = False
) -> np.ndarray:
    """The class of every pixel, as a colour with a name."""
    from mmseg.visualization import SegLocalVisualizer

    return _draw_by(SegLocalVisualizer(name='drawing', alpha=0.5), image, sample, meta, shown, truth)


def _draw_by(
    visualizer: Any,
    image: np.ndarray,
    sample: Any,
    meta: Mapping[str, Any],
    name_it: Callable[[str], str],
    truth: bool,
    **options: Any,
) -> np.ndarray:
    palette = meta.get('palette')
    if palette is None or isinstance(palette, str):  # the name of one that only mmdet has
        palette = np.random.default_rng(0).integers(256, size=(len(meta['classes']), 3)).tolist()
    palette = [tuple(colour) for colour in palette]
    visualizer.dataset_meta = dict(classes=[name_it(str(name)) for name in meta['classes']], palette=palette)
    rgb = np.ascontiguousarray(mmcv.bgr2rgb(image))
    visualizer.set_image(rgb)  # what is left if there is nothing to draw
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='.*out of bounds')  # boxes may touch the border
        visualizer.add_datasample('drawing', rgb, sample, draw_gt=truth, draw_pred=not truth, **options)
    return mmcv.rgb2bgr(visualizer.get_image())


def plain_text(text: str) -> str:
    """For Matplotlib, to which dollars are mathematics."""
    return shown(text).replace('$', r'\$')


def draw_class(
    image: np.ndarray, sample: Any, meta: Mapping[str, Any], score_thr: float = 0.3, truth: bool = False
) -> np.ndarray:
    """The class in a line above the picture, which is enlarged where it is too small for that; red if it is wrong."""
    classes = meta['classes']
    zoom = max(1.0, LEAST_WIDTH / image.shape[1])
    image = cv2.resize(image, None, fx=zoom, fy=zoom, interpolation=cv2.INTER_LINEAR)
    label = getattr(sample, 'gt_label', None)
    text, colour = '' if label in (None, -1) else classes[label], (0, 0, 0)
    if not truth:
        score, best = sample.pred_scores.max(-1)
        wrong = label is not None and label != int(best)
        text, colour = f'{classes[best]} {score:.2f}', (0, 0, 200) if wrong else (0, 0, 0)
    return np.concatenate((_line(text, image.shape[1], colour), image))


def _line(text: str, width: int, colour: tuple[int, int, int] = (0, 0, 0)) -> np.ndarray:
    """A strip (TITLE, width, 3) of text, cut off where it ends; OpenCV's own fonts know ASCII alone."""
    from matplotlib import get_data_path

    font = ImageFont.truetype(f'{get_data_path()}/fonts/ttf/DejaVuSans.ttf', 13)
    strip = Image.new('RGB', (width, TITLE), 'white')
    ImageDraw.Draw(strip).text((2, 4), shown(text), colour[::-1], font)
    return np.array(strip)[..., ::-1]


def contact_sheet(
    images: Sequence[np.ndarray], path: str | Path, columns: int = 4, titles: Sequence[str] | None = None
) -> None:
    """Write one picture of many BGR images (H, W, 3), each scaled to fit a cell; the cells are equal."""
    if not images:
        raise ValueError(f'no images for the contact sheet {str(path)!r}')
    tallest, widest = (max(image.shape[axis] for image in images) for axis in (0, 1))
    shrink = min(1.0, CELL / max(tallest, widest))
    height, width = round(tallest * shrink), round(widest * shrink)
    top = TITLE if titles else 0
    rows, columns = -(-len(images) // columns), min(columns, len(images))
    sheet = np.full((rows * (height + top + GAP), columns * (width + GAP), 3), 255, np.uint8)
    for index, image in enumerate(images):
        y, x = index // columns * (height + top + GAP), index % columns * (width + GAP)
        ratio = min(height / image.shape[0], width / image.shape[1])
        size = max(1, int(image.shape[1] * ratio)), max(1, int(image.shape[0] * ratio))
        small = cv2.resize(image, size, interpolation=cv2.INTER_AREA if ratio < 1 else cv2.INTER_LINEAR)
        sheet[y + top : y + top + size[1], x : x + size[0]] = small
        if titles:
            sheet[y : y + top, x : x + width] = _line(titles[index], width)
    write_picture(sheet, Path(path))
