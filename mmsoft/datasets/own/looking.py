"""A folder of somebody's data recognised, read, checked and divided into parts."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from .checks import check
from .class_lists import read_class_folders, read_class_list
from .coco import read_coco
from .dividing import divide
from .found import Faults, Found, OwnDataError
from .label_maps import read_label_maps
from .labelme import read_labelme
from .tree import Tree, open_root
from .voc import read_voc
from .yolo import read_yolo

BOXES, MASKS, LABELS, CLASSES = 'boxes', 'masks', 'labels', 'classes'  # names of engine/tasks.py
_OBJECTS: tuple[Callable[[Tree], Found | None], ...] = (read_coco, read_labelme, read_voc, read_yolo)
_READERS = {
    BOXES: _OBJECTS,
    MASKS: _OBJECTS,
    LABELS: (read_label_maps, read_coco, read_labelme, read_yolo),
    CLASSES: (read_class_list, read_class_folders),
}
FORMATS = {
    BOXES: 'COCO JSON, LabelMe, Pascal VOC or YOLO text files',
    MASKS: 'COCO JSON, LabelMe or YOLO text files with polygons',
    LABELS: 'label maps or coloured masks beside pictures, or polygons as COCO JSON, LabelMe or YOLO text files',
    CLASSES: 'a folder of pictures for each class, or a CSV file with a picture and its class on each line',
}
MODELS = {BOXES: 'a detector', MASKS: 'a detector with masks', LABELS: 'a segmentor', CLASSES: 'a classifier'}


def look(
    folder: str | Path,
    task: str,
    skip: Collection[Path] = (),
    classes: Sequence[str] | None = None,
    whole: bool = False,
) -> Found:
    """What is in a folder, for a model of this task, with a part for every picture.

    Args:
        folder: Nothing in it is changed.
        task: ``'boxes'``, ``'masks'``, ``'labels'`` or ``'classes'``.
        skip: Folders in it that are not looked into.
        classes: Those of a trained model, whose numbers are kept; data of others is an error.
        whole: All pictures are for testing, unless the data says which are.
    """
    if task not in _READERS:
        raise OwnDataError(f'--data serves models of {", ".join(_READERS)}; this one predicts {task}')
    root = open_root(folder)
    faults = Faults(root)
    tree = Tree(root, faults, [path for path in skip if path.resolve() != root])
    if not tree.pictures:
        raise OwnDataError(f'there are no pictures in {str(root)!r}: looked for .jpg, .png, .bmp, .webp and .tif')
    found = next(filter(None, (read(tree) for read in _READERS[task])), None)
    if found is None or (task == CLASSES and faults.sentences):
        _tell_other(tree, task)
    faults.stop()
    if found is None:
        suffixes = ', '.join(sorted({Path(name).suffix.lower() for name in tree.files} - {''}))
        raise OwnDataError(
            f'{len(tree.pictures)} pictures in {str(root)!r}, but no annotations in a known form (files: {suffixes}): '
            f'{MODELS[task]} takes {FORMATS[task]}'
        )
    check(found, task, faults)
    faults.stop()
    _take_classes(found, classes)
    divide(found, whole)
    return found


def _tell_other(tree: Tree, task: str) -> None:
    """Raise if the data is for a model of another task; class folders look like any."""
    for other, readers in _READERS.items():
        quiet = Tree(tree.root, Faults(tree.root))
        read = next(filter(None, (reader(quiet) for reader in readers if reader is not read_class_folders)), None)
        if other != task and read is not None and read.pictures:
            raise OwnDataError(
                f'the data in {str(tree.root)!r} is {read.kind}, which is for {MODELS[other]}: '
                f'{MODELS[task]} takes {FORMATS[task]}'
            )


def _take_classes(found: Found, classes: Sequence[str] | None) -> None:
    """The numbers of a trained model in place of the data's own."""
    if classes is None:
        return
    strange = [name for name in found.classes if name not in classes]
    if strange:
        raise OwnDataError(
            f'the model knows the classes {", ".join(classes)}; the data in {str(found.root)!r} has '
            f'{len(strange)} others: {", ".join(strange[:8])}'
        )
    found.values = {value: list(classes).index(found.classes[index]) for value, index in found.values.items()}
    if found.palette:
        known = dict(zip(found.classes, found.palette, strict=True))
        found.palette = [known.get(name, (0, 0, 0)) for name in classes]
    found.classes = list(classes)
