"""A model for pictures: ``Predictor('epoch_12.pth')('street.jpg')``."""

import glob
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, init_default_scope
from torch import nn

from mmsoft.checkpoints import load, load_weights, names_for, read_checkpoint
from mmsoft.datasets.class_folders import classes_of
from mmsoft.datasets.layout import leaf_datasets
from mmsoft.versions import require
from mmsoft.visualization import opencv_name, whole_labels
from mmsoft.weights.messages import announce
from mmsoft.weights.meta import dataset_meta

from .carried import carried_config, registered_names
from .config import guard_files, load_config, model_for, without_pretrained
from .parts import kind_of
from .tasks import Task, task_of

PICTURES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.jp2')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')


def load_model(
    cfg: Config, checkpoint: str | Path, device: str = 'auto', trust: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """The config's model with every weight of the checkpoint, ready to predict, and its classes and palette."""
    device = device_of(device)
    guard_files(cfg, trust)
    return _build(cfg, read_checkpoint(checkpoint, trust), str(checkpoint), device)


def device_of(name: str) -> str:
    if name == 'auto':
        return 'cuda:0' if torch.cuda.is_available() else 'cpu'
    if name.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'--device {name}: torch {torch.__version__} finds no GPU; use cpu or auto')
    return name


def _build(cfg: Config, content: Any, source: str, device: str) -> tuple[nn.Module, dict[str, Any]]:
    """The model with the weights of a loaded checkpoint, and its classes and palette."""
    scope = cfg.get('default_scope', 'mmengine')
    require('mmcv', scope)
    init_default_scope(scope)
    without_pretrained(cfg)
    weights = load(content)
    model = revert_sync_batchnorm(
        MODELS.build(model_for(cfg, weights))
    )  # the same in evaluation, and it runs everywhere
    load_weights(model, names_for(model, weights), source=source)
    linearized = ((content.get('meta') or {}).get('linearized') if isinstance(content, Mapping) else None) or {}
    if linearized.get('new_head'):
        announce(f'the head of {source} is new, and its classes are noise: train it with labels first', logging.WARNING)
    model.to(device)
    model.eval()  # which models with a teacher return nothing from
    return model, _meta(cfg, content, model)


def _meta(cfg: Config, content: Any, model: nn.Module) -> dict[str, Any]:
    """Class names and colours: the checkpoint's, the config's, those of the data set's class, or numbers."""
    if kind_of(cfg.model) == 'RPN':  # finds objects of any class
        return dict(classes=('object',), palette=None)
    meta = dataset_meta(content.get('meta')) if isinstance(content, Mapping) else {}
    source = 'the checkpoint'
    if not meta.get('classes'):
        leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
        with DATASETS.switch_scope_and_registry(None) as registry:  # the default scope's
            meta = {**getattr(registry.get(leaf.type), 'METAINFO', {}), **leaf.get('metainfo', {})}
        source = f'the data set {leaf.type}'
        if kind_of(leaf) == 'ClassFolders':
            meta['classes'] = classes_of(dict(leaf, labels=None))
    count = task_of(cfg).num_classes(model)
    classes = tuple(meta.get('classes') or (f'class {index}' for index in range(count)))
    if len(classes) != count:
        raise ValueError(
            f'the model has {count} classes, but {source} names {len(classes)}; '
            "name the model's with test_dataloader.dataset.metainfo.classes in the config"
        )
    return dict(classes=classes, palette=meta.get('palette'))


def find_inputs(inputs: Sequence[str], skip: Sequence[Path] = ()) -> dict[str, Path]:
    """Pictures and videos of paths, folders and glob patterns, by their paths below a common folder.

    Folders and patterns give files with known suffixes that are not below the folders to ``skip``.
    """
    found, skip = [], {folder.absolute() for folder in skip}
    for entry in inputs:
        path = Path(entry).expanduser()
        if path.is_file():
            kept = [path.absolute()]
        else:
            # glob.glob, as pathlib's takes no absolute patterns
            files = path.rglob('*') if path.is_dir() else map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207
            files = [file.absolute() for file in files if file.suffix.lower() in PICTURES + VIDEOS and file.is_file()]
            kept = sorted(file for file in files if skip.isdisjoint(file.parents))
        if not kept:
            raise FileNotFoundError(
                f'input {entry!r}: no picture or video there (working directory {str(Path.cwd())!r}); give a file, '
                f'a folder or a quoted glob pattern of files that end in {", ".join(PICTURES + VIDEOS)}'
            )
        found += (Path(os.path.normpath(file)) for file in kept)
    root = os.path.commonpath([file.parent for file in found])
    return {str(file.relative_to(root)): file for file in found}


def is_video(file: Path) -> bool:
    return file.suffix.lower() in VIDEOS


def _is_picture(source: Any) -> bool:
    """Whether a path is of one picture."""
    path = Path(source).expanduser() if isinstance(source, (str, Path)) else None
    return path is not None and path.is_file() and not is_video(path)


def frames(file: Path) -> Iterator[tuple[np.ndarray, float]]:
    """Images (H, W, 3) of a video, and frames a second."""
    capture = cv2.VideoCapture(opencv_name(file))
    found, image = capture.read()
    if not found:
        raise ValueError(f'{str(file)!r}: no frame can be decoded')
    while found:
        yield image, capture.get(cv2.CAP_PROP_FPS) or 25
        found, image = capture.read()


def _merge(cfg: Config, options: Mapping[str, Any]) -> None:
    unknown = [name for name in options if name.split('.')[0] not in cfg]
    if unknown:
        raise ValueError(f'option {unknown[0]!r}: predicting reads no such part; the config has {", ".join(cfg)}')
    cfg.merge_from_dict(dict(options))


class Predictor:
    """A model with its weights, ready for pictures: ``Predictor('epoch_12.pth')('street.jpg').draw()``.

    Args:
        checkpoint: ``.pth`` or ``.safetensors``: a path, an http(s) address or a hub id.
        config: A config or its file; by default the one that the checkpoint carries, which is read and never run.
        device: ``auto``, ``cpu`` or ``cuda:0``.
        trust: Read a pickle that may run code of whoever wrote it.
        options: Values of the config to change, such as ``{'model.test_cfg.rcnn.score_thr': 0.5}``.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        config: Config | str | Path | None = None,
        device: str = 'auto',
        trust: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        source, device = str(checkpoint), device_of(device)
        cfg = load_config(config) if isinstance(config, (str, Path)) else config
        self.guard = nullcontext if cfg else partial(registered_names, source)
        if cfg:
            _merge(cfg, options or {})
            guard_files(cfg, trust)
        content = read_checkpoint(checkpoint, trust)
        if not cfg:
            cfg = carried_config(content, source)
            _merge(cfg, options or {})
            guard_files(cfg, trust)
        self.cfg, self.task = cfg, task_of(cfg)
        with self.guard():
            self.model, self.meta = _build(cfg, content, source, device)
            self.load, self._prepare = self.task.steps(cfg)

    def prepare(self, image: np.ndarray, name: str, number: int = 0) -> dict[str, Any]:
        """What the model takes for a BGR image (H, W, 3)."""
        shape = image.shape[:2]
        return self._prepare(dict(img=image, img_path=name, img_id=number, img_shape=shape, ori_shape=shape))

    def predict(self, batch: Sequence[dict[str, Any]]) -> list[Any]:
        """The samples of prepared images."""
        with torch.no_grad(), self.guard():
            samples = self.model.test_step({key: [data[key] for data in batch] for key in batch[0]})
        for sample in samples:
            whole_labels(sample)
        return samples

    def __call__(self, pictures: Any, batch_size: int = 8) -> 'Prediction | list[Prediction]':
        """The prediction for a picture, or those for many.

        A picture is a path, an array (H, W, 3) of uint8 in BGR, as OpenCV reads it, or one of Pillow. Many are a list
        of these, a folder, a glob pattern or a video, whose frames they are.
        """
        single = isinstance(pictures, np.ndarray) or hasattr(pictures, 'convert') or _is_picture(pictures)
        found = list(self.stream([pictures] if single else pictures, batch_size))
        return found[0] if single else found

    def stream(self, pictures: Any, batch_size: int = 8) -> Iterator['Prediction']:
        """The same one after the other, for more than memory holds.

        Neighbours go through the model together where they are prepared to equal sizes, so that nothing is padded.
        """
        if batch_size < 1:
            raise ValueError(f'batch_size must be 1 or more; got {batch_size}')
        images, batch = [], []
        for image in self._images(pictures):
            data = self.prepare(image.pixels, image.name)
            if batch and (len(batch) == batch_size or data['inputs'].shape != batch[0]['inputs'].shape):
                yield from self._batch(images, batch)
                images, batch = [], []
            images.append(image)
            batch.append(data)
        if batch:
            yield from self._batch(images, batch)

    def _batch(self, images: list['_Image'], batch: list[dict[str, Any]]) -> Iterator['Prediction']:
        for image, sample in zip(images, self.predict(batch), strict=True):
            yield Prediction(image.pixels, image.name, image.frame, sample.cpu(), self.meta, self.task)

    def _images(self, pictures: Any) -> Iterator['_Image']:
        entries = [pictures] if isinstance(pictures, (str, Path)) else pictures
        for entry in entries:
            if isinstance(entry, (str, Path)):
                for name, file in find_inputs([str(entry)]).items():
                    if is_video(file):
                        yield from (_Image(pixels, name, number) for number, (pixels, _) in enumerate(frames(file)))
                    else:
                        yield _Image(self.load(dict(img_path=str(file)))['img'], str(file), None)
            else:
                yield _Image(_pixels(entry), '', None)


class _Image(NamedTuple):
    pixels: np.ndarray  # (H, W, 3), BGR
    name: str
    frame: int | None


def _pixels(picture: Any) -> np.ndarray:
    """BGR (H, W, 3) of an array or of a picture of Pillow."""
    if hasattr(picture, 'convert'):
        return np.ascontiguousarray(np.asarray(picture.convert('RGB'))[..., ::-1])
    if isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3:
        return picture
    about = f'{picture.dtype} {picture.shape}' if isinstance(picture, np.ndarray) else type(picture).__name__
    raise ValueError(f'a picture is a path, an array (H, W, 3) of uint8 in BGR, or one of Pillow; got {about}')


@dataclass
class Prediction:
    """What a model finds in a picture. What its task does not have is None.

    Args:
        image: The picture (H, W, 3), BGR.
        name: Its file, or ''.
        frame: Its number in a video.
        sample: All that the model says, as OpenMMLab has it.
        meta: ``classes`` and ``palette``.
        task: Whose record knows how to draw.
    """

    image: np.ndarray
    name: str
    frame: int | None
    sample: Any
    meta: Mapping[str, Any]
    task: Task

    def _of_instances(self, key: str) -> np.ndarray | None:
        found = getattr(self.sample, 'pred_instances', None)
        return None if found is None or key not in found else np.asarray(found[key])

    @property
    def boxes(self) -> np.ndarray | None:
        """(n, 4): x1, y1, x2, y2 in pixels."""
        return self._of_instances('bboxes')

    @property
    def masks(self) -> np.ndarray | None:
        """(n, H, W) of bool."""
        return self._of_instances('masks')

    @property
    def labels(self) -> np.ndarray | None:
        """(n,): classes of the boxes; of a classifier all classes, the best first."""
        if hasattr(self.sample, 'pred_scores'):
            return self.sample.pred_scores.argsort(descending=True).numpy()
        return self._of_instances('labels')

    @property
    def scores(self) -> np.ndarray | None:
        """(n,), of the labels."""
        if hasattr(self.sample, 'pred_scores'):
            return self.sample.pred_scores.sort(descending=True).values.numpy()
        return self._of_instances('scores')

    @property
    def names(self) -> list[str] | None:
        """Those of the labels."""
        return None if self.labels is None else [self.meta['classes'][label] for label in self.labels]

    @property
    def label_map(self) -> np.ndarray | None:
        """(H, W): the class of every pixel; of a panoptic model the number of classes where there is none."""
        if hasattr(self.sample, 'pred_panoptic_seg'):
            from mmdet.evaluation.functional import INSTANCE_OFFSET

            return self.sample.pred_panoptic_seg.sem_seg[0].numpy() % INSTANCE_OFFSET
        found = getattr(self.sample, 'pred_sem_seg', None)
        return None if found is None else found.data[0].numpy()

    def draw(self, score_thr: float = 0.3) -> Any:
        """A picture of Pillow with what was found; boxes with at least this score."""
        from PIL import Image

        return Image.fromarray(self.task.draw(self.image, self.sample, self.meta, score_thr)[..., ::-1].copy())
