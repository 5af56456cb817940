"""Pictures in files of any name. OpenCV is given bytes: a name that is not UTF-8 ends the process in it."""

from pathlib import Path

import cv2
import numpy as np

from mmsoft.weights.writing import whole_file


def write_picture(image: np.ndarray, path: Path) -> None:
    """Write an image in the format of the suffix; under its own name the file is always whole."""
    done, content = cv2.imencode(path.suffix, image)
    if not done:
        raise ValueError(f'OpenCV makes no {path.suffix} of an image {image.shape}')
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as partial:
            partial.write_bytes(content)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def can_write(name: str) -> bool:
    """Whether the suffix is one of a format that OpenCV writes in colours."""
    suffix = Path(name).suffix
    return suffix.isascii() and suffix.lower() not in ('.pbm', '.pgm') and cv2.haveImageWriter(f'x{suffix}')


def opencv_name(path: Path) -> str:
    """The name of a video, which OpenCV opens by itself."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ValueError('OpenCV opens videos by names in UTF-8 alone: rename it, or its folder') from None
    return str(path)


class DrawnVideo:
    """An mp4 of frames (H, W, 3); under its own name it is whole."""

    def __init__(self, path: Path, rate: float, shape: tuple[int, int]) -> None:
        self.path, self.partial = path, path.with_name(f'{path.stem}.part.mp4')
        path.parent.mkdir(parents=True, exist_ok=True)
        format = cv2.VideoWriter_fourcc(*'mp4v')
        self.writer, self.frames = cv2.VideoWriter(opencv_name(self.partial), format, rate, shape[::-1]), 0
        if not self.writer.isOpened():
            raise OSError(f'OpenCV cannot write {str(path)!r}; use --no-drawings, or an OpenCV that writes mp4')

    def write(self, image: np.ndarray) -> None:
        self.writer.write(image)
        self.frames += 1

    def close(self) -> None:
        """OpenCV says nothing of a full disk: count what can be read again."""
        self.writer.release()
        written = int(cv2.VideoCapture(str(self.partial)).get(cv2.CAP_PROP_FRAME_COUNT))
        if written < self.frames:
            self.discard()
            raise OSError(f'of {self.frames} frames {written} were written to {str(self.path)!r}: is the disk full?')
        self.partial.replace(self.path)

    def discard(self) -> None:
        self.writer.release()
        self.partial.unlink(missing_ok=True)
