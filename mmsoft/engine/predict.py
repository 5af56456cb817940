"""Predictions for pictures and videos: results that other programs read, and drawings."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
from mmengine.config import Config
from rich.progress import Progress

from mmsoft.datasets.reading import FaultRecord
from mmsoft.files import json_name, places_below
from mmsoft.visualization import DrawnVideo, can_write, opencv_name, write_picture

from .exported import SUFFIXES, ExportedPredictor
from .predictor import Predictor, find_inputs, frames, is_video, load_model

__all__ = ['Summary', 'find_inputs', 'load_model', 'predict']

UNREADABLE, UNDRAWN = 'cannot be read, skipped', 'is predicted, but cannot be drawn'


class Summary(NamedTuple):
    """Number of pictures and frames that were predicted, and the files with a fault: file -> what is wrong."""

    read: int
    unreadable: dict[str, str]


def predict(
    cfg: Config | None,
    checkpoint: str,
    inputs: Sequence[str],
    out_dir: str | Path,
    device: str = 'auto',
    score_thr: float = 0.3,
    trust: bool = False,
    drawings: bool = True,
    options: Mapping[str, Any] | None = None,
) -> Summary:
    """Write ``results.json`` (and ``categories.json``) or ``labels/*.png``; with ``drawings`` also ``drawn/``.

    Label maps have the names of their pictures, with the suffix where a.jpg and a.png are both there. What cannot be
    read, predicted or drawn is left out and told of; many such files in a row, or a full disk, end the run. Whatever
    ends it, what was found until then stays. Without a config, the one that the checkpoint carries is taken, with
    ``options`` merged.
    """
    out_dir = Path(out_dir)
    files = find_inputs(inputs, skip=[out_dir / 'drawn', out_dir / 'labels'])
    out_dir.mkdir(parents=True, exist_ok=True)
    loaded = _loaded(checkpoint, cfg, device, trust, options)
    run = _Run(loaded, out_dir, score_thr if drawings else None, files)
    try:
        with Progress() as progress:
            task = progress.add_task('predicting', total=sum(map(_steps, files.values())))
            for name, file in files.items():
                for _ in run.video(name, file) if is_video(file) else run.picture(name, file):
                    progress.advance(task)
    finally:
        run.finish()
    return Summary(run.count, run.unreadable)


def _loaded(
    checkpoint: str | Path, cfg: Config | None, device: str, trust: bool, options: Mapping[str, Any] | None
) -> Predictor | ExportedPredictor:
    """Of a checkpoint, or of a file that was exported, which has no config to change and runs on the CPU."""
    if not str(checkpoint).endswith(SUFFIXES):
        return Predictor(checkpoint, cfg, device, trust, options)
    wrong = {'a config': cfg, '--cfg-options': options, f'--device {device}': device not in ('auto', 'cpu')}
    if given := next((name for name, value in wrong.items() if value), None):
        raise ValueError(f'{checkpoint!r} is a whole model, which runs on the CPU as it is: leave out {given}')
    return ExportedPredictor(checkpoint)


def _steps(file: Path) -> int:
    """How many pictures a file promises."""
    try:
        return int(cv2.VideoCapture(opencv_name(file)).get(cv2.CAP_PROP_FRAME_COUNT)) if is_video(file) else 1
    except ValueError:
        return 1


def _drawn_name(name: str, file: Path) -> str:
    if is_video(file):
        return name if name.endswith('.mp4') else f'{name}.mp4'
    return name if can_write(name) else f'{name}.png'


class _Run:
    """Predicts one picture after the other and writes what it finds."""

    def __init__(
        self, loaded: Predictor | ExportedPredictor, folder: Path, score_thr: float | None, files: dict[str, Path]
    ) -> None:
        self.loaded, self.folder, self.score_thr = loaded, folder, score_thr
        self.count, self.unreadable, self.faults = 0, {}, FaultRecord(None)
        if score_thr is not None:
            self.drawn = places_below(
                folder / 'drawn', {name: _drawn_name(name, file) for name, file in files.items()}, files.values()
            )
        videos = {name for name, file in files.items() if is_video(file)}
        self.writer = loaded.task.writer(folder, loaded.cfg, loaded.meta, files, videos)

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
            image = self.loaded.load(dict(img_path=str(file)))['img']
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
            for image, rate in frames(file):
                yield image, rate
                self.problem = 'cannot be read to its end'

    def _predict(self, image: np.ndarray, name: str, frame: int | None = None) -> np.ndarray | None:
        """Keep the results of an image (H, W, 3), and give the drawing of them if wanted."""
        self.problem = 'cannot be predicted, skipped'
        (sample,) = self.loaded.predict([self.loaded.prepare(image, name, self.count)])
        place = dict(image_id=self.count + 1, **json_name('file_name', name))
        if frame is not None:
            place['frame'] = frame
        self.writer.write(sample, place, name)
        self.count += 1
        self.problem = UNDRAWN
        if self.score_thr is None:
            return None
        return self.loaded.task.draw(image, sample, self.loaded.meta, self.score_thr)

    def finish(self) -> None:
        """Write what comes in one file."""
        self.writer.finish()
