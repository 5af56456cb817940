"""The layouts of COCO, ADE20K, Cityscapes and ImageNet on disk, and a check of a data set against its own."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from mmengine.dataset import BaseDataset
from mmengine.registry import DATASETS

from mmsoft.files import shown

from .annotations import CocoLook
from .class_folders import SUFFIXES, ClassFolders, LabelError, classes_of, contents, make_transform, places

# What the published archives unpack to, under the data root.
TREES = {
    'mmdet.CocoDataset': """\
coco/
  annotations/instances_train2017.json
  annotations/instances_val2017.json
  train2017/*.jpg                                   118,287 images
  val2017/*.jpg                                       5,000 images""",
    'mmseg.ADE20KDataset': """\
ade/ADEChallengeData2016/
  images/training/*.jpg                              20,210 images
  images/validation/*.jpg                             2,000 images
  annotations/training/*.png                         a label map for each image, 0 = unlabelled
  annotations/validation/*.png""",
    'mmsoft.ClassFolders': """\
imagenet/
  train/<class>/*.JPEG                            1,281,167 images of 1,000 classes
  val/<class>/*.JPEG                                 50,000 images; or, with a file of labels, val/*.JPEG""",
    'mmseg.CityscapesDataset': """\
cityscapes/
  leftImg8bit/train/<city>/*_leftImg8bit.png          2,975 images
  leftImg8bit/val/<city>/*_leftImg8bit.png              500 images
  gtFine/train/<city>/*_gtFine_labelTrainIds.png     made by cityscapesscripts' createTrainIdLabelImgs.py
  gtFine/val/<city>/*_gtFine_labelTrainIds.png""",
}
WAYS_OUT = (
    'Put it there, move the root with MMSOFT_DATA=<folder> or --cfg-options data_root=<folder>, '
    'or try --demo, which draws its own data.'
)


class DataError(FileNotFoundError):
    """A data set that is missing or incomplete."""


def leaf_datasets(dataset: Any) -> Iterator[Mapping[str, Any]]:
    """The data sets in a config that may repeat, join or wrap others; those that are built already are left out."""
    if isinstance(dataset, (list, tuple)):
        for part in dataset:
            yield from leaf_datasets(part)
    elif isinstance(dataset, Mapping):
        inner = dataset.get('dataset') or dataset.get('datasets')
        if inner is None:
            yield dataset
        else:
            yield from leaf_datasets(inner)


def check_dataset(dataset: Mapping[str, Any]) -> list[str]:
    """Raise DataError unless the files of every data set in this config are there; give remarks on its annotations.

    Looked at are COCO's kind, mmseg's kind, class folders and, of others, the annotation file. Remote files are not.
    """
    remarks = []
    for config in leaf_datasets(dataset):
        if issubclass(_find(config['type']), ClassFolders):
            remarks += _check_class_folders(config)
            continue
        leaf = _without_data(config)
        if leaf is None or any('://' in (path or '') for path in (leaf.ann_file, *leaf.data_prefix.values())):
            continue
        if leaf.ann_file and not Path(leaf.ann_file).exists():
            _fail(leaf, f'there is no {leaf.ann_file!r}')
        if 'mmdet.CocoDataset' in _bases(leaf):
            remarks += _check_coco(leaf)
        elif 'mmseg.BaseSegDataset' in _bases(leaf):
            remarks += _check_label_maps(leaf)
    return remarks


def check_evaluator(evaluator: Any, dataset: Mapping[str, Any], name: str) -> None:
    """Raise DataError unless the annotations that metrics compare with are there, and of the images of this data."""
    leaves = list(map(_without_data, leaf_datasets(dataset)))
    own = leaves[0].ann_file if len(leaves) == 1 and leaves[0] is not None else None
    metrics = {f'{name}.{index}': metric for index, metric in enumerate(evaluator)} if _is_list(evaluator) else None
    for place, metric in (metrics or {name: evaluator}).items():
        file = metric.get('ann_file') if isinstance(metric, Mapping) else None
        if not file or '://' in file or file == own:
            continue
        problem = _misfit(file, own)
        if problem:
            option = f'{place}.ann_file={own or "<file>"}'
            raise DataError(
                f'{place}.ann_file: {problem}; the metric needs the file of its data: --cfg-options {option}'
            )


def _is_list(node: Any) -> bool:
    return isinstance(node, (list, tuple))


def _misfit(file: str, own: str | None) -> str | None:
    """What is wrong with annotations for the images of ``own``; each of those must be in them."""
    if not Path(file).is_file():
        return f'there is no {file!r} (working directory {str(Path.cwd())!r})'
    if not own or not own.endswith('.json') or not Path(own).is_file() or Path(file).samefile(own):
        return None
    try:
        listed, asked = (
            {image['id'] for image in json.loads(Path(path).read_bytes())['images']} for path in (file, own)
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f'{file!r} is not complete COCO JSON ({type(error).__name__}: {error})'
    missing = asked - listed
    return f'{file!r} does not list {len(missing)} of the {len(asked)} images of {own!r}' if missing else None


def _without_data(config: Mapping[str, Any]) -> BaseDataset | None:
    """The data set before it reads anything: its class knows how to join paths and what the defaults are."""
    kind = _find(config['type'])
    if not issubclass(kind, BaseDataset):
        return None
    options = {key: value for key, value in config.items() if key not in ('type', '_scope_')}
    try:
        return kind(**{**options, 'pipeline': [], 'lazy_init': True})
    except AssertionError as error:  # some of mmseg's look for their folders here
        problem = str(error) or 'its class does not find its files'
        raise DataError(f'{kind.__name__} at {config.get("data_root")!r}: {problem}. {WAYS_OUT}') from error


def _find(kind: str | type) -> type:
    if isinstance(kind, type):
        return kind
    with DATASETS.switch_scope_and_registry(None) as registry:  # the default scope's
        found = registry.get(kind)
    if found is None:
        raise ValueError(
            f'the data set type {kind!r} is not registered in {registry.scope!r}; '
            f'name its library as well, as in {", ".join(TREES)}'
        )
    return found


def _bases(leaf: BaseDataset) -> list[str]:
    """What the data set is: 'library.Class', the most special first."""
    return [f'{base.__module__.split(".")[0]}.{base.__name__}' for base in type(leaf).__mro__]


def _fail(leaf: BaseDataset, problem: str) -> NoReturn:
    _refuse(type(leaf).__name__, leaf.data_root, _bases(leaf), problem)


def _refuse(name: str, root: str, bases: Iterable[str], problem: str) -> NoReturn:
    lines = [f'{name} at {root or "."!r} (from {str(Path.cwd())!r}): {problem}.']
    for base in bases:
        if base in TREES:
            lines += [f'Expected, as for {base}:', TREES[base]]
    raise DataError('\n'.join([*lines, WAYS_OUT]))


def _folder(leaf: BaseDataset, key: str) -> str:
    """The folder that ``data_prefix`` gives for images or labels."""
    folder = leaf.data_prefix.get(key)
    if folder is None:
        _fail(leaf, f'its data_prefix has no {key!r}')
    folder = folder or '.'
    if not Path(folder).is_dir():
        _fail(leaf, f'there is no folder {folder!r}')
    return folder


def _missing(wanted: Iterable[str], folder: str) -> list[str]:
    """Those paths that are not files. Listing the folder tells of most, sooner than a look at each."""
    found = {Path(where, name) for where, _, names in os.walk(folder) for name in names}
    return sorted(str(path) for path in map(Path, wanted) if path not in found and not path.is_file())


def _add_areas(content: dict) -> int:
    """How many annotations have no area: they get it here, and where mmdet reads the file."""
    from .areas import add_areas, read_without_areas

    read_without_areas()
    return add_areas(content)


def _check_coco(leaf: BaseDataset) -> list[str]:
    images = _folder(leaf, 'img')
    try:
        content = json.loads(Path(leaf.ann_file).read_bytes())
        # LVIS gives addresses instead of names
        named = [image for image in content['images'] if 'file_name' in image or 'coco_url' not in image]
        wanted = {os.path.join(images, image['file_name']) for image in named}  # noqa: PTH118
        computed = _add_areas(content)
        look = CocoLook(content, leaf.metainfo['classes'])
        problem = look.repeated_image() or (leaf.ANN_ID_UNIQUE and look.repeated_annotation())
        problem = problem or look.infinite_box() or look.broken_mask()
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        _fail(leaf, f'{leaf.ann_file!r} is not complete COCO JSON ({type(error).__name__}: {error})')
    if not content['images']:
        _fail(leaf, f'{leaf.ann_file!r} lists no images')
    if problem:
        _fail(leaf, f'in {leaf.ann_file!r} {problem}')
    missing = _missing(wanted, images)
    if missing:
        _fail(leaf, f'{len(missing)} of the {len(wanted)} images are missing in {images!r}, such as {missing[0]!r}')
    remarks = look.unusable()
    if computed:
        remarks.insert(0, f'{computed} annotations have no area: computed from their masks or boxes')
    if look.boxed and not look.usable.any():
        names = ', '.join(shown(category['name']) for category in content['categories'][:8])
        expected = ', '.join(leaf.metainfo['classes'][:8])
        _fail(
            leaf,
            f'none of the {len(look.usable)} boxes in {leaf.ann_file!r} can be used ({"; ".join(remarks)}). Its '
            f'categories are {names}, ...; the config expects {expected}, ...: name yours with '
            'metainfo=dict(classes=...) in the data sets',
        )
    if look.boxed and look.crowd[look.usable].all():
        _fail(leaf, f'all {look.usable.sum()} boxes in {leaf.ann_file!r} that can be used are crowds, not objects')
    if not leaf.test_mode and leaf.filter_data.__func__.__qualname__ == 'CocoDataset.filter_data':
        kept, filtered = look.left_out(leaf.filter_cfg or {})
        if not kept:
            _fail(leaf, f'no image of {leaf.ann_file!r} is left to train on: {filtered[0]}; look at its filter_cfg')
        remarks += filtered
    return [f'{leaf.ann_file}: {remark}' for remark in remarks]


def _check_label_maps(leaf: BaseDataset) -> list[str]:
    images = _folder(leaf, 'img_path')
    labelled = leaf.data_prefix.get('seg_map_path') is not None
    labels = _folder(leaf, 'seg_map_path') if labelled else None
    samples = leaf.load_data_list()
    if not leaf.metainfo.get('classes'):
        raise ValueError(
            f'the {type(leaf).__name__} at {leaf.data_root!r} names no classes, which heads and metrics are compared '
            'with: name them with metainfo=dict(classes=...) in the data set'
        )
    if not samples:
        _fail(leaf, f'no file in {images!r} ends in {leaf.img_suffix!r}')
    missing = _missing((sample['img_path'] for sample in samples), images)
    if missing:
        _fail(leaf, f'{len(missing)} of the {len(samples)} images are missing in {images!r}, such as {missing[0]!r}')
    if not labelled:
        return []
    wanted = {sample['seg_map_path'] for sample in samples}
    missing = _missing(wanted, labels)
    if missing:
        _fail(
            leaf,
            f'{len(missing)} of the {len(samples)} images have no label map in {labels!r}, such as {missing[0]!r}',
        )
    if leaf.ann_file:  # a list that chooses some
        return []
    spare = sum(name.endswith(leaf.seg_map_suffix) for _, _, names in os.walk(labels) for name in names) - len(wanted)
    return [f'{spare} label maps in {labels} have no image: is {images} complete?'] if spare > 0 else []


def class_count(dataset: Mapping[str, Any]) -> int | None:
    """How many classes class folders have; None for data of other kinds."""
    for config in leaf_datasets(dataset):
        if issubclass(_find(config['type']), ClassFolders):
            return len(classes_of(config))
    return None


def class_lists(dataset: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Kind and metainfo of each data set of pictures that names its classes before it reads anything."""
    for config in leaf_datasets(dataset):
        leaf = _without_data(config)
        if leaf is not None and leaf.metainfo.get('classes') and 'mmdet.BaseVideoDataset' not in _bases(leaf):
            yield type(leaf).__name__, leaf.metainfo


def _check_class_folders(config: Mapping[str, Any]) -> list[str]:
    """Classes and pictures, or pictures and labels; a part of the classes is enough to test on."""

    def fail(problem: str) -> NoReturn:
        _refuse('ClassFolders', config['data_root'], ['mmsoft.ClassFolders'], problem)

    _, folder, labels = places(config)
    if not folder.is_dir():
        fail(f'there is no folder {str(folder)!r}')
    if labels and not labels.is_file():
        fail(f'there is no file of labels {str(labels)!r}')
    try:
        classes, samples = contents(config)
    except (LabelError, OSError) as error:
        fail(str(error))
    make_transform(config['transform'])  # says what is wrong with its options
    if not samples and not labels and any(path.suffix.lower() in SUFFIXES for path in folder.iterdir()):
        fail(f'{str(folder)!r} holds pictures, not class folders: name the file of their labels with dataset.labels')
    if not samples:
        fail(f'there are no pictures in class folders of {str(folder)!r}')
    if config.get('listing'):
        missing = _missing((path for path, _ in samples), str(folder))
        if missing:
            fail(f'{len(missing)} of the {len(samples)} pictures are missing, such as {missing[0]!r}')
    if labels or config.get('listing'):
        return []
    present = {path.name for path in folder.iterdir() if path.is_dir()}
    if present - set(classes):
        fail(
            f'{str(folder)!r} has folders that are not among the {len(classes)} classes, such as '
            f'{min(present - set(classes))!r}'
        )
    empty = sorted({classes[number] for number in set(range(len(classes))) - {number for _, number in samples}})
    if empty and set(empty) & present:
        fail(f'{len(empty)} class folders of {str(folder)!r} hold no pictures, such as {min(set(empty) & present)!r}')
    return [f'{folder} has no pictures of {len(empty)} of the {len(classes)} classes'] if empty else []
