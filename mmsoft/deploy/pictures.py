"""Pictures as a model takes them: read and resized as in testing, where OpenCV resizes for detectors and segmentors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

Pixels = np.ndarray  # (H, W, 3), uint8, RGB
MOST = 2**26  # pixels that a classifier's picture is resized to before the crop: a strip of a few would fill the memory
FIXED = 2048  # what OpenCV's whole weights of 8-bit pictures sum to


class PictureError(ValueError):
    """What was given is no picture that can be read."""


def read_picture(source: Any, exif: bool = True) -> Pixels:
    """RGB pixels of a path, an open file, bytes' file object, a picture of Pillow, or an array (H, W, 3) in BGR.

    An array is as OpenCV reads it, and as :class:`mmsoft.Predictor` takes it. ``exif``: turn as the camera says.
    """
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
            raise PictureError(f'an array must be (H, W, 3) of uint8 in BGR; got {source.dtype} {source.shape}')
        return np.ascontiguousarray(source[..., ::-1])
    if hasattr(source, 'convert'):
        return _pixels(source, False)
    if isinstance(source, (str, Path)) and not Path(source).expanduser().is_file():
        raise FileNotFoundError(f'{str(source)!r}: there is no such picture (working directory {str(Path.cwd())!r})')
    name = str(source) if isinstance(source, (str, Path)) else getattr(source, 'name', 'the bytes given')
    try:
        with Image.open(Path(source).expanduser() if isinstance(source, str) else source) as picture:
            return _pixels(picture, exif)
    except Exception as error:  # Pillow's decoders fail in ways of their own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PictureError(f'{name!r} is no picture that Pillow can read: {reason}') from error


def _pixels(picture: Image.Image, exif: bool) -> Pixels:
    if exif:
        picture = ImageOps.exif_transpose(picture)
    if picture.mode.startswith('I;16') or picture.mode == 'I':  # 16 bits to 8, as OpenCV does
        return np.repeat((np.asarray(picture).astype(np.uint32) >> 8).astype(np.uint8)[..., None], 3, 2)
    return np.ascontiguousarray(picture.convert('RGB'))


def prepare(image: Pixels, steps: Mapping[str, Any]) -> np.ndarray:
    """(3, h, w) of float32 from 0 to 255, as the file's ``preprocessing`` says."""
    if 'crop' in steps:
        image = _cropped(image, steps)
    elif steps['scale']:
        image = resize(image, *resized_sides(image.shape[:2], steps['scale'], steps['keep_ratio']))
    return np.ascontiguousarray(image.transpose(2, 0, 1), dtype=np.float32)


def resized_sides(sides: tuple[int, ...], scale: tuple[int, int], keep_ratio: bool) -> tuple[int, int]:
    """(height, width) that a picture is resized to; a scale is (width, height), or its sides' bounds in any order."""
    height, width = sides[:2]
    if not keep_ratio:
        return scale[1], scale[0]
    factor = min(max(scale) / max(height, width), min(scale) / min(height, width))
    return max(int(height * factor + 0.5), 1), max(int(width * factor + 0.5), 1)


def resize(image: Pixels, height: int, width: int) -> Pixels:
    """Bilinear as ``cv2.resize``, to the bit: weights are multiples of 1 / 2048, sums whole numbers."""
    if image.shape[:2] == (height, width):
        return image
    if image.shape[:2] == (2 * height, 2 * width):  # there OpenCV averages squares
        squares = image.reshape(height, 2, width, 2, 3).astype(np.uint16).sum((1, 3))
        return ((squares + 2) >> 2).astype(np.uint8)
    left, right, toward_right = _neighbours(image.shape[1], width, at_edge=True)
    upper, lower, toward_lower = _neighbours(image.shape[0], height, at_edge=False)
    weights = _whole(toward_right)
    rows = (image[:, left] * weights[0][:, None] + image[:, right] * weights[1][:, None]) >> 4  # (H, width, 3)
    weights = _whole(toward_lower)
    y = (rows[upper] * weights[0][:, None, None] >> 16) + (rows[lower] * weights[1][:, None, None] >> 16)
    return ((y + 2) >> 2).clip(0, 255).astype(np.uint8)


def _neighbours(size: int, wanted: int, at_edge: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each wanted pixel the two that it lies between, and how far it is towards the second, in float32."""
    places = ((np.arange(wanted) + 0.5) * (1 / (wanted / size)) - 0.5).astype(np.float32)
    first = np.floor(places).astype(np.int64)
    share = places - first.astype(np.float32)
    if at_edge:
        share[(first < 0) | (first >= size - 1)] = 0
    return first.clip(0, size - 1), (first + 1).clip(0, size - 1), share


def _whole(share: np.ndarray) -> np.ndarray:
    """Both weights, (2, n)."""
    return np.rint(np.stack((np.float32(1) - share, share)) * np.float32(FIXED)).astype(np.int32)


def _cropped(image: Pixels, steps: Mapping[str, Any]) -> Pixels:
    """Resized so that the short side is ``resize``, then the centre: by Pillow, as torchvision does."""
    picture, side = Image.fromarray(image), steps['resize']
    short, long = min(picture.size), max(picture.size)
    other = int(side * long / short)
    if side * other > MOST:
        raise PictureError(
            f'a picture of {picture.width} x {picture.height} would be resized to sides of {side} and {other} before '
            'the crop: cut its longer side'
        )
    if short != side:
        size = (side, other) if picture.width <= picture.height else (other, side)
        picture = picture.resize(size, Image.Resampling[steps['interpolation'].upper()])
    height, width = steps['crop']
    lack = max(width - picture.width, 0), max(height - picture.height, 0)
    if any(lack):  # black, at both sides
        grown = Image.new('RGB', (picture.width + lack[0], picture.height + lack[1]))
        grown.paste(picture, (lack[0] // 2, lack[1] // 2))
        picture = grown
    left, top = round((picture.width - width) / 2), round((picture.height - height) / 2)
    return np.asarray(picture.crop((left, top, left + width, top + height)))
