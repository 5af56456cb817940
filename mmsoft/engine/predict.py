"""Predictions for pictures and videos: results that other programs read, and drawings."""

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.registry import DATASETS, MODELS, init_default_scope
from rich.progress import Progress
from torch import nn

from mmsoft.checkpoints import load, load_weights, names_for, read_checkpoint
from mmsoft.datasets.class_folders import class_names, places
from mmsoft.datasets.layout import leaf_datasets
from mmsoft.datasets.reading import FaultRecord
from mmsoft.files import json_name, places_below
from mmsoft.versions import require
from mmsoft.visualization import DrawnVideo, can_write, opencv_name, write_picture

from .config import guard_files, take_table_size, without_pretrained
from .parts import kind_of
from .tasks import task_of

PICTURES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.jp2')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm', '.m4v', '.mpg', '.mpeg', '.wmv')
UNREADABLE, UNDRAWN = 'cannot be read, skipped', 'is predicted, but cannot be drawn'


def load_model(
    cfg: Config, checkpoint: str | Path, device: str = 'auto', trust: bool = False
) -> tuple[nn.Module, dict[str, Any]]:
    """The config's model with every weight of the checkpoint, ready to predict, and its classes and palette."""
    if device == 'auto':
        device = 'cuda:0' if torch.cuda.is_available() else 'cpu'
    if device.startswith('cuda') and not torch.cuda.is_available():
        raise ValueError(f'--device {device}: torch {torch.__version__} finds no GPU; use cpu or auto')
    scope = cfg.get('default_scope', 'mmengine')
    require('mmcv', scope)
    init_default_scope(scope)
    guard_files(cfg, trust)
    without_pretrained(cfg)
    content = read_checkpoint(checkpoint, trust)
    weights = load(content)
    take_table_size(cfg, weights)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))  # the same in evaluation, and it runs everywhere
    load_weights(model, names_for(model, weights), source=str(checkpoint))
    return model.to(device).eval(), _meta(cfg, content, model)


def _meta(cfg: Config, content: Any, model: nn.Module) -> dict[str, Any]:
    """Class names and colours: the checkpoint's, the config's, those of the data set's class, or numbers."""
    saved = content.get('meta') if isinstance(content, Mapping) else None
    saved = saved.get('dataset_meta') if isinstance(saved, Mapping) else None
    meta = {str(key).lower(): value for key, value in saved.items()} if isinstance(saved, Mapping) else {}
    source = 'the checkpoint'
    if not meta.get('classes'):
        leaf = next(leaf_datasets(cfg.test_dataloader.dataset))
        with DATASETS.switch_scope_and_registry(None) as registry:  # the default scope's
            meta = {**getattr(registry.get(leaf.type), 'METAINFO', {}), **leaf.get('metainfo', {})}
        source = f'the data set {leaf.type}'
        if kind_of(leaf) == 'ClassFolders':
            folders, split, _ = places(leaf)
            meta['classes'] = class_names(folders, split, None)
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


class Summary(NamedTuple):
    """Number of pictures and frames that were predicted, and the files with a fault: file -> what is wrong."""

    read: int
    unreadable: dict[str, str]


def predict(
    cfg: Config,
    checkpoint: str,
    inputs: Sequence[str],
    out_dir: str | Path,
    device: str = 'auto',
    score_thr: float = 0.3,
    trust: bool = False,
    drawings: bool = True,
) -> Summary:
    """Write ``results.json`` (and ``categories.json``) or ``labels/*.png``; with ``drawings`` also ``drawn/``.

    Label maps have the names of their pictures, with the suffix where a.jpg and a.png are both there. What cannot be
    read, predicted or drawn is left out and told of; many such files in a row, or a full disk, end the run. Whatever
    ends it, what was found until then stays.
    """
    out_dir = Path(out_dir)
    files = find_inputs(inputs, skip=[out_dir / 'drawn', out_dir / 'labels'])
    out_dir.mkdir(parents=True, exist_ok=True)
    model, meta = load_model(cfg, checkpoint, device, trust)
    run = _Predictor(cfg, model, meta, out_dir, score_thr if drawings else None, files)
    try:
        with Progress() as progress:
            task = progress.add_task('predicting', total=sum(map(_steps, files.values())))
            for name, file in files.items():
                for _ in run.video(name, file) if _is_video(file) else run.picture(name, file):
                    progress.advance(task)
    finally:
        run.finish()
    return Summary(run.count, run.unreadable)


def _is_video(file: Path) -> bool:
    return file.suffix.lower() in VIDEOS


def _steps(file: Path) -> int:
    """How many pictures a file promises."""
    try:
        return int(cv2.VideoCapture(opencv_name(file)).get(cv2.CAP_PROP_FRAME_COUNT)) if _is_video(file) else 1
    except ValueError:
        return 1


def _drawn_name(name: str, file: Path) -> str:
    if _is_video(file):
        return name if name.endswith('.mp4') else f'{name}.mp4'
    return name if can_write(name) else f'{name}.png'


class _Predictor:
    """Predicts one picture after the other and writes what it finds."""

    def __init__(
        self, cfg: Config, model: nn.Module, meta: dict, folder: Path, score_thr: float | None, files: dict[str, Path]
    ) -> None:
        self.model, self.meta, self.folder, self.score_thr = model, meta, folder, score_thr
        task = task_of(cfg)
        (self.load, self.prepare), self.draw = task.steps(cfg), task.draw
        self.count, self.unreadable, self.faults = 0, {}, FaultRecord(None)
        if score_thr is not None:
            self.drawn = places_below(
                folder / 'drawn', {name: _drawn_name(name, file) for name, file in files.items()}, files.values()
            )
        videos = {name for name, file in files.items() if _is_video(file)}
        self.writer = task.writer(folder, cfg, meta, files, videos)

    @contextmanager
    def _attempt(self, file: Path) -> Iterator[None]:
        """An error in here is the file's; many in a row and a full disk are not."""
        try:
            yield
        except Exception as error:  # decoders, models and drawing fail in ways of their own
            reason = str(error).strip() or type(error).__name__
            self.unreadable.setdefault(str(file), f'{self.problem}: {reason}')
            self.faults.add(str(file), error, 'predicting')

    def picture(self, name: str, file: Path) -> Iterator[None]:
        """Predict a picture; one step."""
        self.problem = UNREADABLE
        with self._attempt(file):
            image = self.load(dict(img_path=str(file)))['img']
            drawn = self._predict(image, name)
            if drawn is not None:
                write_picture(drawn, self.drawn[name])
            self.faults.none()
        yield

    def video(self, name: str, file: Path) -> Iterator[None]:
        """Predict a video; a step a frame."""
        writer = None
        try:
            for frame, (image, rate) in enumerate(self._frames(file)):
                with self._attempt(file):
                    drawn = self._predict(image, name, frame)
                    if drawn is not None:
                        writer = writer or DrawnVideo(self.drawn[name], rate, drawn.shape[:2])
                        writer.write(drawn)
                    self.faults.none()
                yield
        except BaseException:
            if writer is not None:
                writer.discard()
            raise
        self.problem = UNDRAWN
        if writer is not None:
            with self._attempt(file):
                writer.close()

    def _frames(self, file: Path) -> Iterator[tuple[np.ndarray, float]]:
        """Images (H, W, 3) and frames a second."""
        self.problem = UNREADABLE
        with self._attempt(file):
            capture = cv2.VideoCapture(opencv_name(file))
            found, image = capture.read()
            if not found:
                raise ValueError('no frame can be decoded')
            while found:
                yield image, capture.get(cv2.CAP_PROP_FPS) or 25
                self.problem = 'cannot be read to its end'
                found, image = capture.read()

    def _predict(self, image: np.ndarray, name: str, frame: int | None = None) -> np.ndarray | None:
        """Keep the results of an image (H, W, 3), and give the drawing of them if wanted."""
        self.problem = 'cannot be predicted, skipped'
        shape = image.shape[:2]
        data = self.prepare(dict(img=image, img_path=name, img_id=self.count, img_shape=shape, ori_shape=shape))
        with torch.no_grad():
            (sample,) = self.model.test_step({key: [value] for key, value in data.items()})
        place = dict(image_id=self.count + 1, **json_name('file_name', name))
        if frame is not None:
            place['frame'] = frame
        self.writer.write(sample, place, name)
        self.count += 1
        self.problem = UNDRAWN
        return None if self.score_thr is None else self.draw(image, sample, self.meta, self.score_thr)

    def finish(self) -> None:
        """Write what comes in one file."""
        self.writer.finish()
