"""Predictions in files that other programs read: classes and detections as JSON, maps of labels as PNG."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config

from mmsoft.datasets.layout import leaf_datasets
from mmsoft.files import json_text, places_below
from mmsoft.visualization import write_picture

from .results import Results, write_whole

TOP = 5  # classes that are told of a picture


class Writer:
    """Keeps the predictions of pictures, one after the other.

    Args:
        folder: Where to.
        cfg: Of the model.
        meta: ``classes`` of the model.
        files: Pictures and videos, by their names below a common folder.
        videos: The names of those that are videos.
    """

    def __init__(
        self, folder: Path, cfg: Config, meta: Mapping[str, Any], files: Mapping[str, Path], videos: set[str]
    ) -> None:
        self.folder, self.classes = folder, meta['classes']

    def write(self, sample: Any, place: dict[str, Any], name: str) -> None:
        """``place`` says which picture, or ``frame`` of a video, in the results; ``name`` is that of the file."""
        raise NotImplementedError

    def finish(self) -> None:
        """Write what comes in one file."""


class JsonWriter(Writer):
    """``results.json``, with the entries of all pictures."""

    def __init__(self, folder: Path, *about: Any) -> None:
        super().__init__(folder, *about)
        self.results = Results(folder)

    def write(self, sample: Any, place: dict[str, Any], name: str) -> None:
        self.results.add([dict(**place, **entry) for entry in self.entries(sample)])

    def entries(self, sample: Any) -> Iterator[dict[str, Any]]:
        raise NotImplementedError

    def finish(self) -> None:
        self.results.finish()


class ClassWriter(JsonWriter):
    """The best classes with their scores, an entry a picture."""

    def entries(self, sample: Any) -> Iterator[dict[str, Any]]:
        scores, labels = sample.pred_scores.topk(min(TOP, len(sample.pred_scores)))
        yield dict(classes=[json_text(self.classes[label]) for label in labels.tolist()], scores=scores.tolist())


class DetectionWriter(JsonWriter):
    """Entries of COCO's result format, and ``categories.json``."""

    def __init__(
        self, folder: Path, cfg: Config, meta: Mapping[str, Any], files: Mapping[str, Path], videos: set[str]
    ) -> None:
        annotations = _annotations(cfg)
        self.category_ids, source = category_ids(cfg, meta['classes'], annotations)
        self.image_ids, self.used = image_ids(cfg, files, annotations[1])
        names = zip(self.category_ids, meta['classes'], strict=True)
        categories = dict(ids_from=source, categories=[dict(id=number, name=json_text(name)) for number, name in names])
        write_whole(folder / 'categories.json', [json.dumps(categories, indent=1).encode(), b'\n'])
        super().__init__(folder, cfg, meta, files, videos)

    def write(self, sample: Any, place: dict[str, Any], name: str) -> None:
        """With the id that the picture has in the data set, or a number that none has there."""
        number = place['image_id'] + self.used
        super().write(sample, dict(place, image_id=self.image_ids.get(name, number)), name)

    def entries(self, sample: Any) -> Iterator[dict[str, Any]]:
        from mmdet.structures.mask import encode_mask_results

        instances = sample.pred_instances.cpu().numpy()
        rles = encode_mask_results(instances.masks) if 'masks' in instances else [None] * len(instances)
        for (x1, y1, x2, y2), label, score, rle in zip(
            instances.bboxes.tolist(), instances.labels.tolist(), instances.scores.tolist(), rles, strict=True
        ):
            entry = dict(category_id=self.category_ids[label], bbox=[x1, y1, x2 - x1, y2 - y1], score=score)
            yield entry if rle is None else dict(**entry, segmentation=dict(rle, counts=rle['counts'].decode()))


class SegmentWriter(DetectionWriter):
    """Of panoptic models: scored instances where they give some, the segments of the picture else.

    A segment has a ``segment_id``, its mask, box and area; panoptic models score none.
    """

    def entries(self, sample: Any) -> Iterator[dict[str, Any]]:
        if hasattr(sample, 'pred_instances'):
            yield from super().entries(sample)
            return
        from mmdet.structures.mask import encode_mask_results
        from pycocotools import mask as coder

        for number, (label, mask) in enumerate(segments(sample, len(self.classes)), start=1):
            (rle,) = encode_mask_results([mask])
            about = dict(bbox=coder.toBbox(rle).tolist(), area=int(mask.sum()), segment_id=number)
            segmentation = dict(rle, counts=rle['counts'].decode())
            yield dict(category_id=self.category_ids[label], **about, segmentation=segmentation)


def segments(sample: Any, count: int) -> Iterator[tuple[int, np.ndarray]]:
    """Class and mask (H, W) of each segment of a panoptic sample; what is of no class is left out."""
    from mmdet.evaluation.functional import INSTANCE_OFFSET

    ids = sample.pred_panoptic_seg.sem_seg[0].cpu().numpy()
    for number in np.unique(ids).tolist():
        if number % INSTANCE_OFFSET < count:
            yield number % INSTANCE_OFFSET, ids == number


class LabelMapWriter(Writer):
    """``labels/``: class indices as PNG of 8 bits, or 16 where there are more than 256; a video gets a folder."""

    def __init__(
        self, folder: Path, cfg: Config, meta: Mapping[str, Any], files: Mapping[str, Path], videos: set[str]
    ) -> None:
        super().__init__(folder, cfg, meta, files, videos)
        stems = {name: str(Path(name).with_suffix('')) for name in files}
        kept = stems if len(set(stems.values())) == len(files) else {name: name for name in files}
        wanted = {name: kept[name] if name in videos else f'{kept[name]}.png' for name in files}
        self.places = places_below(folder / 'labels', wanted, files.values())

    def write(self, sample: Any, place: dict[str, Any], name: str) -> None:
        target = self.places[name] / f'{place["frame"]:06d}.png' if 'frame' in place else self.places[name]
        labels = sample.pred_sem_seg.data[0].cpu().numpy()  # (H, W)
        write_picture(labels.astype(np.min_scalar_type(len(self.classes) - 1)), target)


def _annotations(cfg: Config) -> tuple[str, dict[str, Any]]:
    """The data set's file in COCO's format and what is in it; nothing if it has none."""
    leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
    path = Path(leaf.get('data_root') or '', leaf.get('ann_file') or '')
    return str(path), json.loads(path.read_bytes()) if path.is_file() and path.suffix == '.json' else {}


def image_ids(cfg: Config, files: Mapping[str, Path], content: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Name -> id in the annotations, of files that are pictures of the data set; the largest id, or 0 if none is.

    ``others`` in the annotations are pictures of the data set's other parts, see ``own.writing``.
    """
    leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
    folder = Path(leaf.get('data_root') or '', (leaf.get('data_prefix') or {}).get('img') or '')
    listed = {
        os.path.realpath(folder / image['file_name']): image['id']
        for image in [*content.get('images', ()), *content.get('others', ())]
        if 'file_name' in image
    }
    found = {name: listed[place] for name, file in files.items() if (place := os.path.realpath(file)) in listed}
    return found, max((number for number in listed.values() if isinstance(number, int)), default=0) if found else 0


def category_ids(
    cfg: Config, classes: Sequence[str], annotations: tuple[str, dict] | None = None
) -> tuple[list[int], str]:
    """The data set's category ids of these classes, and where they come from."""
    path, content = annotations or _annotations(cfg)
    if content:
        ids = {entry['name']: entry['id'] for entry in content['categories']}
        if ids.keys() >= set(classes):
            return [ids[name] for name in classes], path
    from torchvision.models.detection import RetinaNet_ResNet50_FPN_Weights

    # the list that torchvision's COCO detectors index by category id
    coco = {name: i for i, name in enumerate(RetinaNet_ResNet50_FPN_Weights.COCO_V1.meta['categories'])}
    if coco.keys() - {'__background__', 'N/A'} == set(classes):
        return [coco[name] for name in classes], 'COCO'
    numbers = list(range(1, len(classes) + 1))
    return numbers, 'the order of the classes, counted from 1: no annotation file tells the ids'
