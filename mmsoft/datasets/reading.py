"""Files that cannot be read or make no sense are put on record, not left to end a run hours in."""

import io
import json
import os
import stat
import warnings
from math import prod
from pathlib import Path

import mmcv
import numpy as np
from mmcv.transforms import BaseTransform, LoadAnnotations
from mmengine import fileio, registry
from PIL import Image

from mmsoft.files import disk_is_full, json_name, name_from_json, shown
from mmsoft.registry import TRANSFORMS

IGNORED_LABEL, IGNORED_DEEP = 255, 65535  # of 8 bits and of 16
# As many faults in a row are not the files' fault, but that of an option, or of a disk that is gone.
FAULTS_IN_A_ROW = 100
SIZE_IF_UNKNOWN = (512, 512)
MOST_UNEQUAL = 100  # sides of a picture: resizing makes others of no rows, or of millions
LARGEST_BLANK = 1 << 26  # pixels, where an annotation tells them and no picture does


def check_sides(*sides: int) -> None:
    """Raise unless the height and width of a picture allow for resizing it."""
    if min(sides) * MOST_UNEQUAL < max(sides):
        raise ValueError(f'its sides of {sides[0]} and {sides[1]} pixels are too unequal to resize it')


def check_file(path: str | Path) -> None:
    """Raise for what would be read without end, or never; what is not there is told of by whoever opens it."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):  # not there, remote, or no name
        return
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        raise ValueError('it is a device or a pipe, not a file')


class FaultRecord:
    """A file with one line of JSON a fault, the file and what is wrong with it; None keeps nothing."""

    def __init__(self, record: str | Path | None) -> None:
        self.record = None if record is None else Path(record)
        self.recorded, self.in_a_row = set(), 0
        self.read, self.torn = 0, False  # bytes of the record, and whether it ends within a line

    def add(self, path: str, error: Exception, doing: str) -> None:
        """Put the error on record, or raise if there are too many, or if no more can be written."""
        if disk_is_full(error):
            raise error
        fault = f'{type(error).__name__}: {error}'
        self.write(path, fault)
        self.in_a_row += 1
        if self.in_a_row >= FAULTS_IN_A_ROW:
            raise RuntimeError(
                f'{doing} failed {FAULTS_IN_A_ROW} times in a row, so it is hardly the files: '
                f'look at its options in the config and at the disk. The last failure, with {str(path)!r}: {fault}'
            ) from error

    def none(self) -> None:
        """A file that is sound."""
        self.in_a_row = 0

    def write(self, path: str, fault: str) -> None:
        """One line in one unbuffered write, which other processes do not tear apart; once for each file."""
        if self.record is None:
            return
        self._read_on()
        if path in self.recorded:
            return
        line = json.dumps(dict(**json_name('file', os.fspath(path)), fault=shown(fault[:500]))) + '\n'
        try:
            self.record.parent.mkdir(parents=True, exist_ok=True)
            with self.record.open('ab', buffering=0) as file:
                file.write(('\n' * self.torn + line).encode())
        except OSError as error:
            warnings.warn(f'{self.record} cannot be written: {error}. Not on record is {shown(path)}', stacklevel=2)

    def _read_on(self) -> None:
        """Take in what other processes, and runs before this one, have written since the last look."""
        if not self.record.is_file():
            return
        with self.record.open('rb') as file:
            file.seek(self.read)
            new = file.read()
        self.recorded |= set(_parse(new))
        self.torn = bool(new) and not new.endswith(b'\n')
        self.read += new.rfind(b'\n') + 1


@TRANSFORMS.register_module()
class ReadSafely(BaseTransform):
    """Runs a loading transform; what it cannot read is skipped in training and counts as a miss in evaluation.

    Args:
        loader: The loading transform.
        record: A file that gets one line of JSON a fault: the file and what is wrong with it.
        training: Skip the sample, so that the data set draws another one. Otherwise an image that
            cannot be read is black, a label map is ignored, and instances are left out.
        num_classes: Pixels with labels of this and above, except for 255, are ignored and put on record.
    """

    def __init__(self, loader: dict, record: str, training: bool, num_classes: int | None = None) -> None:
        self.loader = registry.TRANSFORMS.build(loader)
        self.faults, self.training, self.num_classes = FaultRecord(record), training, num_classes

    def transform(self, results: dict) -> dict | None:
        loads_image, label_map = 'img' not in results, results.get('seg_map_path')
        try:
            check_file(results['img_path'] if loads_image else label_map or '')
            loaded = self.loader(results)
            if loads_image and loaded is not None:
                check_sides(*loaded['img'].shape[:2])
            if loaded is not None and 'gt_seg_map' in loaded:
                self._check_labels(loaded)
        except MemoryError:
            raise
        except Exception as error:  # decoders fail in ways of their own
            path = results['img_path'] if loads_image or not label_map else label_map
            self.faults.add(path, error, type(self.loader).__name__)
            if self.training:
                return None
            if loads_image:
                self._blank_image(results)
            elif label_map:
                self._blank_labels(results)
            else:  # instances: COCO's metric reads its own
                return self.loader({**results, 'instances': []})
            return results
        self.faults.none()
        return loaded

    def _check_labels(self, results: dict) -> None:
        labels, path = results['gt_seg_map'], results['seg_map_path']
        if labels.shape != tuple(results['ori_shape']):
            raise ValueError(f'the label map is {labels.shape}, its image {tuple(results["ori_shape"])}')
        deep = self._deep_labels(path) if isinstance(self.loader, LoadAnnotations) else None
        if deep is not None:  # 256 became 0
            wrong = ~((deep >= 0) & (deep <= 255))
            labels[wrong] = IGNORED_LABEL
            self._record_labels(path, deep[wrong & (deep != IGNORED_DEEP)], 'the loader keeps 8 bits')
        if self.num_classes is not None:
            wrong = (labels >= self.num_classes) & (labels != IGNORED_LABEL)
            self._record_labels(path, labels[wrong], f'there are {self.num_classes} classes')
            labels[wrong] = IGNORED_LABEL

    def _record_labels(self, path: str, wrong: np.ndarray, why: str) -> None:
        if wrong.size:
            values = np.unique(wrong)[:8].tolist()
            self.faults.write(path, f'{wrong.size} pixels have labels such as {values}; {why}: they are ignored')

    def _deep_labels(self, path: str) -> np.ndarray | None:
        """A label map of more than 8 bits as it is in the file; its header tells."""
        content = fileio.get(path, backend_args=self.loader.backend_args)
        with Image.open(io.BytesIO(content)) as file:
            if not file.mode.startswith(('I', 'F')):
                return None
        return mmcv.imfrombytes(content, 'unchanged', backend=self.loader.imdecode_backend).squeeze()

    def _blank_image(self, results: dict) -> None:
        """Black, of the size that the annotation tells."""
        shape = (results['height'], results['width']) if 'height' in results else _label_size(results)
        if not 0 < max(shape) <= MOST_UNEQUAL * min(shape) or prod(shape) > LARGEST_BLANK:
            shape = SIZE_IF_UNKNOWN
        results.update(img=np.zeros((*shape, 3), np.uint8), img_shape=shape, ori_shape=shape)

    def _blank_labels(self, results: dict) -> None:
        if 'gt_seg_map' not in results.setdefault('seg_fields', []):
            results['seg_fields'].append('gt_seg_map')
        results['gt_seg_map'] = np.full(results['ori_shape'], IGNORED_LABEL, np.uint8)


def _label_size(results: dict) -> tuple[int, int]:
    """Height and width of the label map; if that cannot be read either, nothing is compared at any size."""
    try:
        return mmcv.imread(results['seg_map_path'], 'unchanged', backend='pillow').shape[:2]
    except Exception:
        return SIZE_IF_UNKNOWN


def read_faults(record: str | Path) -> dict[str, str]:
    """Faults on record: file -> fault. A file that was met twice counts once; a line that breaks off does not."""
    return _parse(Path(record).read_bytes()) if Path(record).is_file() else {}


def _parse(lines: bytes) -> dict[str, str]:
    faults = {}
    for line in lines.splitlines():
        try:
            entry = json.loads(line)
            faults[name_from_json('file', entry)] = entry['fault']
        except (ValueError, TypeError, KeyError):  # a process was killed while it wrote
            continue
    return faults
