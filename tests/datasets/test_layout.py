"""A missing or broken data set is one clear error; annotations that are passed over are counted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mmengine.registry import DefaultScope
from small_worlds import SCOPES, build, check, config, cut, rewrite_coco

from mmsoft.datasets.layout import DataError, check_evaluator
from mmsoft.datasets.miniature import FOLDERS


def test_complete_data_sets_pass_however_they_are_written(worlds: Path) -> None:
    from mmdet.datasets import CocoDataset
    from mmseg.datasets import CityscapesDataset

    class Mine(CityscapesDataset):
        def __init__(self, **kwargs) -> None:
            super().__init__(img_suffix='_leftImg8bit.png', seg_map_suffix='_gtFine_labelTrainIds.png', **kwargs)

    coco, folder = config('coco', worlds), worlds / 'coco'
    absolute = dict(ann_file=str(folder / coco['ann_file']), data_prefix=dict(img=str(folder / 'val2017')))
    for dataset in (
        coco,
        {**coco, 'type': 'mmdet.CocoDataset'},
        {**coco, 'type': CocoDataset},
        {**coco, **absolute, 'data_root': None},
        {**coco, 'data_root': str(folder)},
        dict(type='RepeatDataset', times=2, dataset=coco),
        dict(type='mmsoft.SeededDataset', dataset=dict(type='ConcatDataset', datasets=[coco, coco])),
        config('coco', worlds, ann_file='s3://bucket/instances.json'),
    ):
        assert check(dataset) == []
    ade = config('ade20k', worlds)
    for dataset in (
        ade,
        {**ade, 'type': 'mmseg.ADE20KDataset', 'data_prefix': dict(img_path='images/validation')},
        config('cityscapes', worlds),
        config('cityscapes', worlds, type=Mine),
    ):
        assert check(dataset, 'mmseg') == []


def unlink_some(folder: Path, pattern: str, count: int = 1) -> None:
    paths = sorted(folder.rglob(pattern))
    assert len(paths) >= count
    for path in paths[:count]:
        path.unlink()


BROKEN = {
    'no json': ('coco', lambda at: unlink_some(at, 'instances_val2017.json'), "there is no '.*instances_val2017.json'"),
    'cut json': (
        'coco',
        lambda at: cut(at / 'annotations/instances_val2017.json'),
        r'not complete COCO JSON \(JSONDecodeError',
    ),
    'other json': ('coco', lambda at: rewrite_coco(at, dict.clear), r"not complete COCO JSON \(KeyError: 'images'"),
    'text for a number': (
        'coco',
        lambda at: rewrite_coco(at, lambda json: json['annotations'][0].update(bbox=['1', 2, 3, 4])),
        r'not complete COCO JSON \(TypeError: a box or size is a str, not a number',
    ),
    'no number': (
        'coco',
        lambda at: rewrite_coco(at, lambda json: json['images'][0].update(width=None)),
        r'a box or size is a NoneType, not a number',
    ),
    'no images listed': ('coco', lambda at: rewrite_coco(at, lambda json: json.update(images=[])), 'lists no images'),
    'no image folder': ('coco', lambda at: shutil.rmtree(at / 'val2017'), "there is no folder '.*val2017/'"),
    'missing images': (
        'coco',
        lambda at: unlink_some(at / 'val2017', '*.jpg', 3),
        r"3 of the 4 images are missing in '.*val2017/', such as '.*1\.jpg'",
    ),
    'no root': ('coco', shutil.rmtree, "there is no '.*instances_val2017.json'"),
    'no images': ('ade20k', lambda at: unlink_some(at / 'images/validation', '*', 4), "no file in .* ends in '.jpg'"),
    'no label folder': ('ade20k', lambda at: shutil.rmtree(at / 'annotations'), "no folder '.*annotations/validation'"),
    'missing label maps': (
        'ade20k',
        lambda at: unlink_some(at / 'annotations/validation', '*', 2),
        '2 of the 4 images have no label map in',
    ),
    'no train ids': (
        'cityscapes',
        lambda at: unlink_some(at / 'gtFine/val', '*labelTrainIds.png', 4),
        '(?s)4 of the 4 images have no label map.*createTrainIdLabelImgs.py',
    ),
}


@pytest.mark.parametrize('case', BROKEN)
@pytest.mark.parametrize('wrapped', [False, True], ids=['bare', 'wrapped'])
def test_a_broken_layout_is_one_clear_error(case: str, wrapped: bool, worlds: Path, tmp_path: Path) -> None:
    world, spoil, message = BROKEN[case]
    folder = tmp_path / FOLDERS[world]
    shutil.copytree(worlds / FOLDERS[world], folder)
    spoil(folder)
    dataset = config(world, tmp_path)
    if wrapped:
        dataset = dict(type='mmsoft.SeededDataset', dataset=dict(type='RepeatDataset', times=2, dataset=dataset))
    with pytest.raises(DataError, match=message) as caught:
        check(dataset, SCOPES[world])
    text = str(caught.value)
    assert text.startswith(f'{config(world, tmp_path)["type"]} at {str(folder)!r}'.removesuffix("'"))
    for part in ('Expected, as for mm', FOLDERS[world], 'MMSOFT_DATA', '--demo'):
        assert part in text


def test_remarks_count_what_is_not_trained_on(worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')
    shutil.copytree(worlds / FOLDERS['ade20k'], tmp_path / FOLDERS['ade20k'])

    def spoil(content: dict) -> None:
        first = content['annotations'][0]
        changes = [
            dict(bbox=[5, 5, 0, 9]),
            dict(area=0),
            dict(bbox=[96, 3, 9, 9]),
            dict(bbox=[3, -20, 9, 20]),
            dict(category_id=1234),
            dict(image_id=99),
            dict(bbox=[3, 3, float('nan'), 20]),
            dict(bbox=[30, 3, -9, 20]),
            dict(ignore=1),
        ]
        content['annotations'] += [{**first, 'id': 1000 + i, **change} for i, change in enumerate(changes)]

    rewrite_coco(tmp_path / 'coco', spoil)
    remarks = [remark.split(': ', 1)[1] for remark in check(config('coco', tmp_path))]
    assert [remark.split(', such')[0] for remark in remarks] == [
        '1 boxes of a class that the data set does not have',
        '1 boxes of an image that is not listed',
        '1 boxes marked to be ignored',
        '1 boxes with numbers that are none (NaN)',
        '1 boxes of negative width or height',
        '2 boxes with no area',
        '2 boxes outside of its image',
    ]
    assert "such as annotation 1000 of '000000000001.jpg': [5.0, 5.0, 0.0, 9.0]: not trained on" in remarks[5]
    unlink_some(tmp_path / FOLDERS['ade20k'] / 'images/validation', '*', 3)
    (remark,) = check(config('ade20k', tmp_path), 'mmseg')
    assert remark.startswith('3 label maps in ')


def test_label_maps_without_names_of_classes_are_an_error(worlds: Path) -> None:
    """No head could be compared with them, and mmseg's metric would fail after the first validation."""
    dataset = dict(config('ade20k', worlds), type='BaseSegDataset')
    with pytest.raises(ValueError, match=r'the BaseSegDataset at .* names no classes, .* with metainfo=dict\(classes='):
        check(dataset, 'mmseg')
    check(dict(dataset, metainfo=dict(classes=('one', 'two'))), 'mmseg')


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="type 'CoccoDataset' is not registered in 'mmdet'"):
        check(dict(type='CoccoDataset'))


def test_annotations_of_other_classes_are_an_error(worlds: Path, tmp_path: Path) -> None:
    """The forgotten metainfo: nothing would be left to train on."""
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')

    def rename(content: dict) -> None:
        for category in content['categories']:
            category['name'] = f'my {category["name"]}'

    rewrite_coco(tmp_path / 'coco', rename)
    with pytest.raises(DataError, match=r'are my person(.|\n)*the config expects person(.|\n)*metainfo=dict\(classes'):
        check(config('coco', tmp_path))


def repeat_image(content: dict) -> None:
    content['images'][1]['id'] = content['images'][0]['id']


def repeat_annotation(content: dict) -> None:
    content['annotations'][1]['id'] = content['annotations'][0]['id']


def only_crowds(content: dict) -> None:
    for annotation in content['annotations']:
        annotation['iscrowd'] = 1


def broken_masks(content: dict) -> None:
    """Each ended the process in pycocotools, or filled the memory."""
    broken = [
        [[1, 2, 3, None, 5, 6]],
        [[1, 2, 3, float('inf'), 5, 6]],
        [[1, 2, 10**9, 4, 5, 6]],
        [[1, 2, '3', 4, 5, 6]],
    ]
    broken += [dict(counts=[5, 5], size=[10**5, 10**5]), dict(counts='x', size=[-1, -4]), dict(counts=[5]), 'x', 3]
    sound = [None, [], [[]], dict(counts=[6], size=[2, 3]), [[-0.5, 2, 3, 4, 5e3, 6]]]
    for annotation, mask in zip(content['annotations'] * 2, broken + sound, strict=False):
        content['annotations'].append(dict(annotation, id=len(content['annotations']) + 1, segmentation=mask))


def endless_box(content: dict) -> None:
    content['annotations'][0]['bbox'][2] = float('inf')


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (repeat_image, "1 image ids are used more than once, such as 1 for '000000000001.jpg' and '000000000002.jpg'"),
        (repeat_annotation, "1 annotation ids are used more than once, such as 1 in '000000000001.jpg' and '0000"),
        (only_crowds, r'all \d+ boxes in .* that can be used are crowds, not objects'),
        (broken_masks, r"9 segmentations are no masks, such as annotation \d+ of '0+1.jpg': correct them"),
        (endless_box, r"1 boxes have numbers without end, such as annotation 1 of '0+1.jpg': \[.*inf"),
    ],
)
def test_annotations_that_would_be_confused_are_an_error(
    spoil: Callable[[dict], None], message: str, worlds: Path, tmp_path: Path
) -> None:
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')
    rewrite_coco(tmp_path / 'coco', spoil)
    with pytest.raises(DataError, match=message):
        check(config('coco', tmp_path))


def test_what_a_filter_leaves_out_is_told(worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')

    def spoil(content: dict) -> None:
        first, second = (image['id'] for image in content['images'][:2])
        content['images'][0]['width'] = 20
        content['annotations'] = [entry for entry in content['annotations'] if entry['image_id'] not in (first, second)]

    rewrite_coco(tmp_path / 'coco', spoil)
    filtered = config('coco', tmp_path, filter_cfg=dict(filter_empty_gt=True, min_size=32))
    (remark,) = check(filtered)
    assert remark.endswith(
        '2 of the 4 images are left out: 1 with a side below 32 pixels (min_size) and 1 without objects of its classes '
        '(filter_empty_gt)'
    )
    assert len(build('coco', tmp_path, filter_cfg=filtered['filter_cfg'])) == 2
    assert check({**filtered, 'test_mode': True}) == []
    with pytest.raises(DataError, match=r'no image of .* is left to train on: 4 of the 4 images .* below 4096 pixels'):
        check({**filtered, 'filter_cfg': dict(min_size=4096)})


def test_metrics_compare_with_the_annotations_of_their_data(worlds: Path, tmp_path: Path) -> None:
    folder = worlds / 'coco' / 'annotations'
    own = folder / 'instances_val2017.json'
    copied, broken = tmp_path / 'copy.json', tmp_path / 'broken.json'
    shutil.copy(own, copied)
    broken.write_text('{"images": [')
    content = json.loads(own.read_text())
    content['images'] = [dict(image, id=f'x{image["id"]}') for image in content['images']]
    other_ids = tmp_path / 'ids.json'
    other_ids.write_text(json.dumps(content))

    def check_metric(evaluator: object) -> None:
        with DefaultScope.overwrite_default_scope('mmdet'):
            check_evaluator(evaluator, config('coco', worlds), 'val_evaluator')

    for file in (own, copied, 's3://bucket/a.json', None):
        check_metric(dict(type='CocoMetric', ann_file=file and str(file)))
    check_metric(None)
    check_metric([dict(type='IoUMetric'), dict(type='CocoMetric', ann_file=str(own))])
    mend = f'--cfg-options val_evaluator.ann_file={own}'
    for file, problem in (
        (tmp_path / 'none.json', f"there is no '{tmp_path}/none.json' (working directory"),
        (broken, f"'{broken}' is not complete COCO JSON (JSONDecodeError"),
        (other_ids, f"'{other_ids}' does not list 4 of the 4 images of '{own}'"),
    ):
        with pytest.raises(DataError) as caught:
            check_metric(dict(type='CocoMetric', ann_file=str(file)))
        assert str(caught.value).startswith(f'val_evaluator.ann_file: {problem}')
        assert str(caught.value).endswith(mend)
    with pytest.raises(DataError, match=r'--cfg-options val_evaluator\.1\.ann_file='):
        check_metric([dict(type='IoUMetric'), dict(type='CocoMetric', ann_file='none.json')])
