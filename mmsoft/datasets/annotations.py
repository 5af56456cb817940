"""A look at COCO's annotations before a run: what mmdet passes over, confuses or leaves out without a word."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import chain
from math import isfinite
from typing import Any

import numpy as np

FARTHEST = 100_000  # pixels from the corner of an image to a point of a polygon
LARGEST_MASK = 1 << 28  # pixels


def is_mask(segmentation: Any) -> bool:
    """Polygons of numbers within bounds, runs for an image within bounds, or nothing."""
    try:
        if isinstance(segmentation, Mapping):
            height, width = segmentation['size']
            return 0 < height * width <= LARGEST_MASK and height > 0
        return all(
            isfinite(sum(polygon)) and min(polygon) > -FARTHEST and max(polygon) < FARTHEST
            for polygon in segmentation or ()
            if polygon
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


class CocoLook:
    """What is in the JSON, as arrays; a KeyError, TypeError or ValueError if it is not COCO's.

    Args:
        content: The parsed file.
        classes: Names of the classes that the data set has.
    """

    def __init__(self, content: Mapping[str, Any], classes: Iterable[str]) -> None:
        self.listings = content['images']
        self.images = list({image['id']: image for image in self.listings}.values())
        self.sides = np.array([(image['width'], image['height']) for image in self.images], np.float64).reshape(-1, 2)
        # panoptic annotations have no boxes
        self.boxed = [entry for entry in content.get('annotations', ()) if 'segments_info' not in entry]
        names, rows = set(classes), {image['id']: row for row, image in enumerate(self.images)}
        known = {category['id'] for category in content['categories'] if category['name'] in names}
        self.ids = [entry['id'] for entry in self.boxed]
        self.boxes = np.array([entry['bbox'] for entry in self.boxed], np.float64).reshape(len(self.boxed), 4)
        self.areas = np.array([entry['area'] for entry in self.boxed], np.float64)
        self.of_known = np.array([entry['category_id'] in known for entry in self.boxed], bool)
        self.rows = np.array([rows.get(entry['image_id'], -1) for entry in self.boxed], np.int64)  # in images
        self.crowd, self.ignored = (
            np.array([bool(entry.get(mark)) for entry in self.boxed], bool) for mark in ('iscrowd', 'ignore')
        )
        self.usable = np.ones(len(self.boxed), bool)
        numbers = chain(
            chain.from_iterable(entry['bbox'] for entry in self.boxed),
            (entry['area'] for entry in self.boxed),
            (image[side] for image in self.images for side in ('width', 'height')),
        )
        if kinds := set(map(type, numbers)) - {int, float}:  # NumPy takes '1' and None as well
            raise TypeError(f'a box or size is a {kinds.pop().__name__}, not a number')

    def repeated_image(self) -> str | None:
        """Boxes of both would be trained on the picture of one."""
        files = {}
        for image in self.listings:
            file = image.get('file_name', image.get('coco_url'))
            if files.setdefault(image['id'], file) != file:
                repeated = sum(count > 1 for count in Counter(image['id'] for image in self.listings).values())
                return (
                    f'{repeated} image ids are used more than once, such as {image["id"]!r} for {files[image["id"]]!r} '
                    f'and {file!r}: give each image an id of its own'
                )
        return None

    def repeated_annotation(self) -> str | None:
        """One would take the place of the other."""
        if len(set(self.ids)) == len(self.ids):
            return None
        repeated = [number for number, count in Counter(self.ids).items() if count > 1]
        first = self.ids.index(repeated[0])
        second = self.ids.index(repeated[0], first + 1)
        return (
            f'{len(repeated)} annotation ids are used more than once, such as {repeated[0]!r} in '
            f'{self._file(first)!r} and {self._file(second)!r}: give each annotation an id of its own'
        )

    def infinite_box(self) -> str | None:
        """mmdet would train on it."""
        with np.errstate(over='ignore', invalid='ignore'):
            corners = np.concatenate([self.boxes[:, :2], self.boxes[:, :2] + self.boxes[:, 2:]], 1).astype(np.float32)
        found = np.flatnonzero(np.isinf(corners).any(1))
        if not len(found):
            return None
        return f'{len(found)} boxes have numbers without end, {self._such_as(found[0])}: correct or remove them'

    def broken_mask(self) -> str | None:
        """pycocotools takes any number, and ends the process or fills the memory."""
        found = [index for index, entry in enumerate(self.boxed) if not is_mask(entry.get('segmentation'))]
        if not found:
            return None
        number, file = self.ids[found[0]], self._file(found[0])
        return f'{len(found)} segmentations are no masks, such as annotation {number!r} of {file!r}: correct them'

    def unusable(self) -> list[str]:
        """A remark a kind; ``usable`` says which boxes are left."""
        (x, y, width, height), (across, down) = self.boxes.T, self.sides[self.rows].T
        kinds = {
            'of a class that the data set does not have': ~self.of_known,
            'of an image that is not listed': self.rows < 0,
            'marked to be ignored': self.ignored,
            'with numbers that are none (NaN)': np.isnan(self.boxes).any(1),
            'of negative width or height': (width < 0) | (height < 0),
            'with no area': (width < 1) | (height < 1) | (self.areas <= 0),
            'outside of its image': (x >= across) | (y >= down) | (x + width <= 0) | (y + height <= 0),
        }
        remarks = []
        for kind, wrong in kinds.items():
            found = np.flatnonzero(wrong & self.usable)
            if len(found):
                remarks.append(f'{len(found)} boxes {kind}, {self._such_as(found[0])}: not trained on')
                self.usable[found] = False
        return remarks

    def left_out(self, filter_cfg: Mapping[str, Any]) -> tuple[int, list[str]]:
        """How many images mmdet's filter leaves, and a remark if it leaves some out."""
        least, reasons = filter_cfg.get('min_size', 0), []
        gone = self.sides.min(1) < least
        if gone.any():
            reasons.append(f'{gone.sum()} with a side below {least} pixels (min_size)')
        if filter_cfg.get('filter_empty_gt', False):
            empty = ~gone
            empty[self.rows[self.of_known & (self.rows >= 0)]] = False
            if empty.any():
                reasons.append(f'{empty.sum()} without objects of its classes (filter_empty_gt)')
                gone |= empty
        remark = f'{gone.sum()} of the {len(gone)} images are left out: {" and ".join(reasons)}'
        return int((~gone).sum()), [remark] if reasons else []

    def _such_as(self, index: int) -> str:
        return f'such as annotation {self.ids[index]!r} of {self._file(index)!r}: {self.boxes[index].tolist()}'

    def _file(self, index: int) -> str:
        image = self.images[self.rows[index]] if self.rows[index] >= 0 else {}
        return image.get('file_name') or f'image {self.boxed[index]["image_id"]}'
