"""Odd files are read; broken ones are skipped or blank, and on record."""

import os
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.registry import TRANSFORMS
from PIL import Image
from small_worlds import FORK, SIZE, build, config, cut, rewrite_coco, safely

from mmsoft.datasets.class_folders import ClassFolders
from mmsoft.datasets.miniature import FOLDERS
from mmsoft.datasets.reading import SIZE_IF_UNKNOWN, ReadSafely, read_faults


def odd_images(folder: Path) -> dict[str, Path]:
    """Files that are unusual and sound."""
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 256, (*SIZE, 3), dtype=np.uint8))
    rotated = Image.Exif()
    rotated[0x0112] = 6  # orientation: turn by 90 degrees
    paths = {name: folder / f'{name}' for name in ('grey.jpg', 'cmyk.jpg', 'rgba.png', 'palette.png', 'exif.jpg')}
    for name, mode in (('grey.jpg', 'L'), ('cmyk.jpg', 'CMYK'), ('rgba.png', 'RGBA'), ('palette.png', 'P')):
        colour.convert(mode).save(paths[name])
    colour.save(paths['exif.jpg'], exif=rotated)
    paths['deep.png'] = folder / 'deep.png'
    assert cv2.imwrite(str(paths['deep.png']), rng.integers(0, 2**16, (*SIZE, 3), dtype=np.uint16))
    return paths


def test_odd_images_are_read_as_without_the_wrapper(tmp_path: Path) -> None:
    loader = dict(type='LoadImageFromFile')
    wrapped = ReadSafely(loader, record=str(tmp_path / 'faults'), training=True)
    shapes = {}
    for name, path in odd_images(tmp_path).items():
        expected = TRANSFORMS.build(loader)(dict(img_path=str(path)))
        found = wrapped(dict(img_path=str(path)))
        assert found.keys() == expected.keys()
        assert np.array_equal(found['img'], expected['img'])
        shapes[name] = found['img'].shape
    assert shapes.pop('exif.jpg') == (SIZE[1], SIZE[0], 3)
    assert set(shapes.values()) == {(*SIZE, 3)}
    assert len(shapes) == 5
    assert read_faults(tmp_path / 'faults') == {}


def test_an_image_without_objects_is_no_fault(worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')
    rewrite_coco(tmp_path / 'coco', lambda content: content.update(annotations=[]))
    pipeline = safely(config('coco', tmp_path)['pipeline'], tmp_path / 'faults', training=True)
    dataset = build('coco', tmp_path, pipeline=pipeline)
    assert [len(dataset[index]['data_samples'].gt_instances) for index in range(4)] == [0] * 4
    assert read_faults(tmp_path / 'faults') == {}


SPOIL = dict(
    truncated=cut,
    empty=lambda path: path.write_bytes(b''),
    text=lambda path: path.write_text('<html>404</html>'),
    missing=Path.unlink,
)


@pytest.mark.parametrize('spoil', SPOIL)
@pytest.mark.parametrize('world', ['coco', 'ade20k'])
def test_a_broken_image_is_skipped_in_training_and_black_in_evaluation(
    world: str, spoil: str, worlds: Path, tmp_path: Path
) -> None:
    shutil.copytree(worlds / FOLDERS[world], tmp_path / FOLDERS[world])
    record = tmp_path / 'work' / 'faults.jsonl'  # the folder comes with the first fault
    pipeline = config(world, tmp_path)['pipeline']
    training = build(world, tmp_path, pipeline=safely(pipeline, record, training=True))
    testing = build(world, tmp_path, pipeline=safely(pipeline, record, training=False), test_mode=True)
    path = Path(training.get_data_info(1)['img_path'])
    truth = testing[1]['data_samples']
    SPOIL[spoil](path)
    samples = [training[index] for index in range(4)]
    assert all(sample['data_samples'].img_path != str(path) for sample in samples)
    assert list(read_faults(record)) == [str(path)]
    sample = testing[1]
    assert sample['inputs'].shape == (3, *SIZE)
    assert not sample['inputs'].any()
    if world == 'coco':
        assert len(sample['data_samples'].gt_instances) == len(truth.gt_instances) > 0
    else:
        assert torch.equal(sample['data_samples'].gt_sem_seg.data, truth.gt_sem_seg.data)
    assert list(read_faults(record)) == [str(path)]


@pytest.mark.parametrize('sides', [(1, 5000), (5000, 1)])
@pytest.mark.parametrize('world', ['coco', 'ade20k'])
def test_a_picture_that_no_resizing_leaves_whole_ends_no_run(
    world: str, sides: tuple[int, int], worlds: Path, tmp_path: Path
) -> None:
    """It became one of no rows, also where its annotation tells the true size of it."""
    shutil.copytree(worlds / FOLDERS[world], tmp_path / FOLDERS[world])
    record, pipeline = tmp_path / 'faults.jsonl', config(world, tmp_path)['pipeline']
    pipeline.insert(2, dict(type='Resize', scale=(96, 64), keep_ratio=True))
    height, width = sides
    if world == 'coco':
        truth = dict(height=height, width=width)
        rewrite_coco(tmp_path / FOLDERS['coco'], lambda content: [image.update(truth) for image in content['images']])
    for training in (True, False):
        data = build(world, tmp_path, pipeline=safely(pipeline, record, training), test_mode=not training)
        info = data.get_data_info(1)
        for path in filter(None, (info['img_path'], info.get('seg_map_path'))):
            Path(path).write_bytes(cv2.imencode(Path(path).suffix, np.ones(sides, np.uint8))[1])
        assert data[1]['inputs'].any() == training  # another one, or black
    assert next(iter(read_faults(record).values())) == (
        f'ValueError: its sides of {height} and {width} pixels are too unequal to resize it'
    )


@pytest.mark.skipif(not hasattr(os, 'mkfifo'), reason='Windows has no pipes among its files')
@pytest.mark.parametrize('world', ['coco', 'ade20k', 'imagenet'])
def test_pipes_and_devices_are_not_read(world: str, worlds: Path, tmp_path: Path) -> None:
    """One is waited for, the other fills the memory; an archive may hold links to it."""
    shutil.copytree(worlds / FOLDERS[world], tmp_path / FOLDERS[world])
    record = tmp_path / 'faults'
    if world == 'imagenet':
        options = dict(split='val', transform=dict(input_size=64), record=str(record))
        data = ClassFolders(data_root=str(tmp_path / FOLDERS[world]), **options)
    else:
        pipeline = safely(config(world, tmp_path)['pipeline'], record, training=False)
        data = build(world, tmp_path, pipeline=pipeline, test_mode=True)
    places = [data.get_data_info(index)['img_path'] for index in range(2)]
    if world == 'ade20k':
        places.append(data.get_data_info(2)['seg_map_path'])
    for path in places:
        Path(path).unlink()
    os.mkfifo(places[0])
    for path in places[1:]:
        Path(path).symlink_to('/dev/zero')
    for index in range(3):
        data[index]
    assert read_faults(record) == dict.fromkeys(places, 'ValueError: it is a device or a pipe, not a file')


def test_a_black_image_is_no_larger_than_pictures_are(worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / FOLDERS['coco'], tmp_path / FOLDERS['coco'])
    lie = dict(height=10**6, width=10**6)
    rewrite_coco(tmp_path / FOLDERS['coco'], lambda content: [image.update(lie) for image in content['images']])
    pipeline = safely(config('coco', tmp_path)['pipeline'], tmp_path / 'faults', training=False)
    data = build('coco', tmp_path, pipeline=pipeline, test_mode=True)
    Path(data.get_data_info(1)['img_path']).write_bytes(b'')
    assert data[1]['inputs'].shape == (3, *SIZE_IF_UNKNOWN)


def test_a_classifier_makes_no_picture_of_millions_of_columns(worlds: Path, tmp_path: Path) -> None:
    shutil.copytree(worlds / FOLDERS['imagenet'], tmp_path / FOLDERS['imagenet'])
    for training, split in ((True, 'train'), (False, 'val')):
        data = ClassFolders(
            data_root=str(tmp_path / FOLDERS['imagenet']),
            split=split,
            transform=dict(input_size=64, is_training=training),
            record=str(tmp_path / split),
        )
        path = Path(data.get_data_info(0)['img_path'])
        Image.new('RGB', (5000, 1), 'red').save(path)
        assert data[0]['inputs'].shape == (3, 64, 64)
        assert list(read_faults(tmp_path / split)) == [str(path)]


SPOIL_LABELS = dict(
    SPOIL,
    size=lambda path: cv2.imwrite(str(path), np.ones((32, 96), np.uint8)),
    colours=lambda path: cv2.imwrite(str(path), np.ones((*SIZE, 3), np.uint8)),
)


@pytest.mark.parametrize('spoil', SPOIL_LABELS)
def test_a_broken_label_map_is_skipped_in_training_and_ignored_in_evaluation(
    spoil: str, worlds: Path, tmp_path: Path
) -> None:
    shutil.copytree(worlds / FOLDERS['ade20k'], tmp_path / FOLDERS['ade20k'])
    record, pipeline = tmp_path / 'faults', config('ade20k', tmp_path)['pipeline']
    training = build('ade20k', tmp_path, pipeline=safely(pipeline, record, training=True))
    testing = build('ade20k', tmp_path, pipeline=safely(pipeline, record, training=False), test_mode=True)
    info = training.get_data_info(2)
    SPOIL_LABELS[spoil](Path(info['seg_map_path']))
    assert all(training[index]['data_samples'].img_path != info['img_path'] for index in range(4))
    sample = testing[2]
    assert sample['inputs'].any()
    assert sample['data_samples'].gt_sem_seg.data.shape == (1, *SIZE)
    assert sample['data_samples'].gt_sem_seg.data.unique().tolist() == [255]
    assert list(read_faults(record)) == [info['seg_map_path']]
    if spoil != 'size':
        Path(info['img_path']).write_bytes(b'')  # now neither tells the labels' size
        assert testing[2]['data_samples'].gt_sem_seg.data.unique().tolist() == [255]


@pytest.mark.parametrize('training', [True, False])
def test_labels_out_of_range_are_ignored_and_recorded(training: bool, worlds: Path, tmp_path: Path) -> None:
    record = tmp_path / 'faults'
    pipeline = safely(config('cityscapes', worlds)['pipeline'], record, training, num_classes=10)
    plain, wrapped = build('cityscapes', worlds), build('cityscapes', worlds, pipeline=pipeline)
    for index in range(len(plain)):
        expected = plain[index]['data_samples'].gt_sem_seg.data
        found = wrapped[index]['data_samples'].gt_sem_seg.data
        assert torch.equal(found, torch.where(expected >= 10, 255, expected))
    assert 'pixels have labels such as [10' in next(iter(read_faults(record).values()))
    lines = record.read_text()
    assert wrapped[0]
    assert record.read_text() == lines  # each file once


def test_what_is_not_the_files_fault_is_an_error(worlds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(record=str(tmp_path / 'faults'), training=True)
    with pytest.raises(TypeError, match='colour_type'):
        ReadSafely(dict(type='LoadImageFromFile', colour_type='color'), **options)
    misspelt = dict(type='LoadImageFromFile', color_type='colour')
    dataset = build('coco', worlds, pipeline=[dict(type='mmsoft.ReadSafely', loader=misspelt, **options)])
    with pytest.raises(RuntimeError, match=r"100 times in a row.*KeyError: 'colour'"):
        dataset[0]
    wrapped = ReadSafely(dict(type='LoadImageFromFile'), **options)

    def exhaust(results: dict) -> None:
        raise MemoryError

    monkeypatch.setattr(wrapped, 'loader', exhaust)
    with pytest.raises(MemoryError):
        wrapped(dict(img_path='x'))


def _record_many(record: str, name: str) -> None:
    transform = ReadSafely(dict(type='LoadImageFromFile'), record, training=True)
    for number in range(80):
        assert transform(dict(img_path=f'{name}-{number}-' + 'é' * 100)) is None


def test_records_of_several_processes_and_a_line_cut_by_a_kill(tmp_path: Path) -> None:
    record = tmp_path / 'faults'
    writers = [FORK.Process(target=_record_many, args=(str(record), n)) for n in 'ab']
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    faults = read_faults(record)
    assert len(faults) == 160
    assert all('FileNotFoundError' in fault for fault in faults.values())
    cut_line = record.read_bytes()[:-30]
    record.write_bytes(cut_line)
    assert len(read_faults(record)) == 159
    assert read_faults(tmp_path / 'none') == {}


def test_a_fault_is_recorded_once_however_often_a_run_is_resumed(tmp_path: Path) -> None:
    """Workers of every epoch and resumed runs begin with no memory; a line that breaks off spoils no other."""
    record = tmp_path / 'faults'
    for run in range(3):
        transform = ReadSafely(dict(type='LoadImageFromFile'), str(record), training=True)
        for name in ('a.jpg', 'b\udce9.jpg', f'{run}.jpg'):
            assert transform(dict(img_path=name)) is None
        with record.open('ab') as file:
            file.write(b'{"file": "cut')
    assert list(read_faults(record)) == ['a.jpg', 'b\udce9.jpg', '0.jpg', '1.jpg', '2.jpg']
    assert record.read_text().count('"a.jpg"') == 1
    assert r'"b\\xe9.jpg"' in record.read_text()  # JSON has no halves of characters


def test_a_record_on_a_full_disk_does_not_end_the_run() -> None:
    transform = ReadSafely(dict(type='LoadImageFromFile'), '/dev/full', training=True)
    with pytest.warns(UserWarning, match='/dev/full cannot be written: .*No space left'):
        assert transform(dict(img_path='a.jpg')) is None


@pytest.mark.parametrize('backend', ['pillow', 'cv2'])
def test_labels_of_16_bits_do_not_wrap(backend: str, worlds: Path, tmp_path: Path) -> None:
    """256 became 0, a class; 65535 is what such maps have for nothing."""
    shutil.copytree(worlds / FOLDERS['cityscapes'], tmp_path / FOLDERS['cityscapes'])
    pipeline = config('cityscapes', tmp_path)['pipeline']
    pipeline[1]['imdecode_backend'] = backend
    safe = safely(pipeline, tmp_path / 'faults', training=False, num_classes=19)
    dataset = build('cityscapes', tmp_path, pipeline=safe)
    for index, values in enumerate(((3, 5, 65535), (3, 256, 300))):
        labels = np.full(SIZE, values[0], np.uint16)
        labels[:4], labels[4:6] = values[1:]
        assert cv2.imwrite(dataset.get_data_info(index)['seg_map_path'], labels)
    found = [dataset[index]['data_samples'].gt_sem_seg.data for index in range(2)]
    assert [labels.unique().tolist() for labels in found] == [[3, 5, 255], [3, 255]]
    (fault,) = read_faults(tmp_path / 'faults').values()
    assert fault == f'{6 * SIZE[1]} pixels have labels such as [256, 300]; the loader keeps 8 bits: they are ignored'
