"""Folders of people's data: every format gives the same objects, faults have their line, nothing is changed."""

import json
import shutil
from pathlib import Path

import numpy as np
import own_sets
import pytest
from own_sets import FORMATS, NAMES, SIZE
from PIL import Image

from mmsoft.datasets.own import OwnDataError, look, write

TASKS = dict(
    coco=('boxes', 'masks', 'labels'),
    voc=('boxes',),
    yolo=('boxes',),
    yolo_polygons=('boxes', 'masks', 'labels'),
    labelme=('boxes', 'masks', 'labels'),
    label_maps=('labels',),
    colours=('labels',),
    class_folders=('classes',),
    csv=('classes',),
)


@pytest.fixture(scope='module')
def sets(tmp_path_factory):
    root = tmp_path_factory.mktemp('own')
    for name, make in FORMATS.items():
        (root / name).mkdir()
        make(root / name)
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob('*') if path.is_file()}


def objects(found) -> dict[int, list]:
    """Number in a picture's name -> class and box of its objects, rounded."""
    return {
        int(''.join(filter(str.isdigit, Path(picture.path).stem))): sorted(
            (entry.label, *np.round(entry.box).astype(int).tolist()) for entry in picture.objects
        )
        for picture in found.pictures
    }


@pytest.mark.parametrize('name', TASKS)
def test_every_format_gives_the_same_and_is_left_as_it_is(name, sets, tmp_path):
    before, scenes = contents(sets / name), list(own_sets.drawn(6))
    for task in TASKS[name]:
        found = look(sets / name, task)
        write(found, tmp_path / task, task)
        assert set(found.classes) - {'background', 'ground'} == set(NAMES)
        assert {picture.part for picture in found.pictures} == {'train', 'val'}
        if task in ('boxes', 'masks'):
            expected = {
                index: sorted((NAMES[kind], *own_sets.box(polygon)) for kind, polygon in scene.objects)
                for index, scene in enumerate(scenes)
            }
            assert {index: boxes for index, boxes in objects(found).items() if index < 6} == expected
        elif task == 'labels':
            check_maps(found, tmp_path / task, scenes)
        else:
            rows = (tmp_path / task / 'train.csv').read_text().splitlines()
            assert len(rows) == len(found.of('train'))
            assert all(row.rsplit(',', 1)[1] in NAMES for row in rows)
    assert contents(sets / name) == before


def check_maps(found, folder, scenes):
    """Pixels of a class are those that were drawn of it, the border aside: tools round outlines in their ways."""
    names = ['background' if 'background' in found.classes else 'ground', *NAMES]
    for picture in found.pictures:
        index = int(''.join(filter(str.isdigit, Path(picture.path).stem)))
        if index >= len(scenes):
            continue
        drawn = np.array([found.classes.index(name) for name in names])[own_sets.label_map(scenes[index].objects)]
        written = np.array(Image.open(folder / 'label_maps' / f'{picture.path}.png'))
        assert written.shape == SIZE
        assert (written == drawn).mean() > 0.95
        assert sum(picture.pixels.values()) == written.size
    assert (folder / 'train.txt').read_text().splitlines() == [picture.path for picture in found.of('train')]


def test_cocos_annotations_are_written_with_their_own_ids(sets, tmp_path):
    """Results are read beside the file that they came from; ids of the file are odd."""
    found = look(sets / 'coco', 'masks', classes=[*NAMES, 'more'])
    write(found, tmp_path, 'masks')
    content = json.loads((tmp_path / 'train.json').read_text())
    assert [category['name'] for category in content['categories']] == found.classes == [*NAMES, 'more']
    assert [category['id'] for category in content['categories']] == [*range(7, 67, 10), 58]
    assert {image['id']: image['file_name'].split()[-1] for image in content['images']} == {
        100 + index: f'{index}.JPG' for index in range(20) if f'My Photos/holiday {index}.JPG' in paths(found, 'train')
    }
    assert sorted(image['file_name'] for image in content['others']) == sorted(paths(found, 'val'))
    assert {image['id'] for image in content['images'] + content['others']} == set(range(100, 120))
    assert all((sets / 'coco' / image['file_name']).is_file() for image in content['images'])
    entry = content['annotations'][0]
    assert entry['area'] < entry['bbox'][2] * entry['bbox'][3] * 1.2
    assert entry['segmentation']


def paths(found, part):
    return [picture.path for picture in found.of(part)]


def test_ids_that_results_cannot_have_are_numbered_anew(sets, tmp_path):
    """Two files of one part, each with ids from 100, and classes under other ids."""
    for name in ('one', 'two'):
        shutil.copytree(sets / 'coco', tmp_path / name)
    path = tmp_path / 'two' / 'export final (2).json'
    path.write_text(path.read_text().replace('"id": 17,', '"id": "17",').replace('_id": 17,', '_id": "17",'))
    found = look(tmp_path, 'boxes', whole=True)
    write(found, tmp_path / 'out', 'boxes')
    content = json.loads((tmp_path / 'out' / 'test.json').read_text())
    assert [image['id'] for image in content['images']] == list(range(1, 41))
    assert [category['id'] for category in content['categories']] == list(range(1, 7))
    told = '\n'.join(found.remarks)
    assert 'ids of classes are no whole numbers, or differ from file to file: results count from 1' in told
    assert 'ids of the pictures for test are no whole numbers, or of two pictures: results count from 1' in told


# Of each kind of fault: the format, what is changed in a file, and what the sentence says, its line among it.
def change(folder: Path, pattern: str, old: str, new: str) -> None:
    path = sorted(folder.rglob(pattern))[0]
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


FAULTS = {
    'category': (
        'coco',
        '*.json',
        '"category_id": 57',
        '"category_id": 99',
        r'line \d+: annotation 0: .*category_id is 99',
    ),
    'image': ('coco', '*.json', '"image_id": 100', '"image_id": 5', 'annotation 0: its image_id is 5'),
    'picture': ('coco', '*.json', 'holiday 1.JPG', 'gone.jpg', r'line \d+: there is no picture .*gone.jpg'),
    'size': ('coco', '*.json', '"width": 128', '"width": 127', 'annotated at 127 x 96 pixels, but has 128 x 96'),
    'no size': (
        'coco',
        '*.json',
        '"width": 128',
        '"width": "wide"',
        "its width and height: expected numbers; got .'wide', 96",
    ),
    'names': ('yolo', 'data.yaml', 'names: ', 'names: plate #', 'names must be a list, or a name for each number'),
    'same id': ('coco', '*.json', '"id": 101', '"id": 100', 'the id 100 is used by another image'),
    'number': ('coco', '*.json', '"bbox": [', '"bbox": ["a",', 'must be .x, y, width, height'),
    'JSON': ('coco', '*.json', '"annotations"', '"annotations', r'line \d+: is no whole JSON'),
    'XML': ('voc', '*.xml', '</object>', '</objekt>', r'line \d+: is no whole XML: mismatched tag'),
    'corner': ('voc', '*.xml', '<xmin>', '<xmin>x', r'line \d: its bndbox must be'),
    'pixels': ('yolo', 'p1.txt', ' 0.', ' 30.', r'line 1: coordinates are shares of the picture'),
    'class': ('yolo', 'p1.txt', '\n', '\n7 .1 .1 .1 .1\n', r"line 2: the class 7 is none of the 6 in 'data.yaml'"),
    'numbers': ('yolo', 'p1.txt', '\n', '\n1 .1 .1 .1\n', r'line 2: expected "class x y width height"'),
    'YAML': ('yolo', 'data.yaml', 'nc:', 'nc: [', r'line \d: is no YAML'),
    'point': ('labelme', '0.json', '"points": [', '"points": [[1],', r'line \d+: a point is x and y'),
    'row': ('csv', 'my labels.csv', ',box\n', ',\n', r'line \d+: expected a picture and its class'),
}


@pytest.mark.parametrize('kind', FAULTS)
def test_a_fault_is_a_sentence_with_its_line(kind, sets, tmp_path):
    name, pattern, old, new, sentence = FAULTS[kind]
    shutil.copytree(sets / name, tmp_path / 'set')
    change(tmp_path / 'set', pattern, old, new)
    with pytest.raises(OwnDataError, match=f'(?s)the data in .*cannot be used.*{sentence}'):
        look(tmp_path / 'set', TASKS[name][0])


def test_maps_that_do_not_fit(sets, tmp_path):
    shutil.copytree(sets / 'label_maps', tmp_path / 'set')
    path = tmp_path / 'set' / 'masks' / 'a1_mask.png'
    values = np.array(Image.open(path))
    for wrong, sentence in (
        (np.full_like(values, 9), "has the value 9, for which 'classes.txt'"),
        (values[:50], '128 x 50'),
    ):
        Image.fromarray(wrong).save(path)
        with pytest.raises(OwnDataError, match=f'a1_mask.png.*{sentence}'):
            look(tmp_path / 'set', 'labels')


@pytest.mark.parametrize(
    ('name', 'task', 'sentence'),
    [
        ('voc', 'masks', 'objects with a box and no outline: 27'),
        ('label_maps', 'boxes', 'is label maps, which is for a segmentor: a detector takes COCO'),
        ('coco', 'classes', 'is COCO JSON, which is for a detector: a classifier takes a folder'),
        ('class_folders', 'boxes', 'no annotations in a known form'),
        ('coco', 'segments', 'this one predicts segments'),
        ('nothing', 'boxes', 'does not exist'),
    ],
)
def test_data_of_another_task_is_refused(name, task, sentence, sets):
    with pytest.raises(OwnDataError, match=sentence):
        look(sets / name, task)


def test_pictures_without_a_folder_of_a_class(sets, tmp_path):
    shutil.copytree(sets / 'class_folders', tmp_path / 'set')
    folders = sorted((tmp_path / 'set' / 'flowers').iterdir())
    shutil.copy(next(folders[0].iterdir()), tmp_path / 'set' / 'flowers' / 'stray.png')
    with pytest.raises(OwnDataError, match=r"stray.png': lies in no folder of a class \(one of 1\): move it"):
        look(tmp_path / 'set', 'classes')
    for folder in folders[1:]:
        shutil.rmtree(folder)
    (tmp_path / 'set' / 'flowers' / 'stray.png').unlink()
    (tmp_path / 'set' / 'prices.csv').write_text('a,b\n1,2\n')
    told = "all pictures lie in one folder: a classifier needs one for each class; 'prices.csv' is no list of pictures"
    with pytest.raises(OwnDataError, match=told):
        look(tmp_path / 'set', 'classes')


def test_label_maps_of_one_value_teach_nothing(sets, tmp_path):
    shutil.copytree(sets / 'label_maps', tmp_path / 'set')
    (tmp_path / 'set' / 'classes.txt').unlink()
    for path in (tmp_path / 'set' / 'masks').iterdir():
        Image.fromarray(np.full_like(np.array(Image.open(path)), 4)).save(path)
    with pytest.raises(OwnDataError, match="one class, 'class_4': a segmentor needs two"):
        look(tmp_path / 'set', 'labels')


def remarks(folder: Path, task: str = 'boxes') -> str:
    return '\n'.join(look(folder, task).remarks)


def test_early_warnings(sets, tmp_path):
    shutil.copytree(sets / 'coco', tmp_path / 'coco')
    path = tmp_path / 'coco' / 'export final (2).json'
    content = json.loads(path.read_text())
    content['categories'] += [dict(id=900, name='ghost'), dict(id=901, name='plate'), dict(id=902, name='Box')]
    content['annotations'][0]['bbox'] = [500, 10, 20, 20]
    content['annotations'][1]['bbox'] = [100, 10, 200, 20]
    content['annotations'][2]['category_id'] = 901
    path.write_text(json.dumps(content, indent=1))
    told = remarks(tmp_path / 'coco')
    assert "two classes are called 'plate', with the ids 7 and 901: they are taken as one" in told
    assert "the classes 'box' and 'Box' are called almost the same" in told
    assert 'classes without an example: ghost, Box' in told
    assert 'boxes outside of their picture: 1, ' in told
    assert 'boxes that reach outside of their picture: 1' in told
    found = look(tmp_path / 'coco', 'boxes')
    assert found.classes.count('plate') == 1
    assert max(entry.box[0] + entry.box[2] for picture in found.pictures for entry in picture.objects) <= SIZE[1]

    shutil.copytree(sets / 'yolo', tmp_path / 'yolo')
    shutil.copy(tmp_path / 'yolo' / 'train' / 'images' / 'p1.png', tmp_path / 'yolo' / 'valid' / 'images' / 'q.png')
    told = remarks(tmp_path / 'yolo')
    assert (
        "pictures of val that are in train as well: 1, such as 'valid/images/q.png' and 'train/images/p1.png'" in told
    )
    assert "pictures without a text file: 1, 'valid/images/q.png'" in told


def test_the_division_is_the_same_every_time_and_keeps_copies_together(sets, tmp_path):
    first = {picture.path: picture.part for picture in look(sets / 'coco', 'boxes').pictures}
    assert list(first.values()).count('val') == 4
    assert {picture.path: picture.part for picture in look(sets / 'coco', 'masks').pictures} == first
    shutil.copytree(sets / 'class_folders', tmp_path / 'set')
    for picture in sorted((tmp_path / 'set').rglob('*.png')):
        shutil.copy(picture, picture.with_name(f'copy of {picture.name}'))
    found = look(tmp_path / 'set', 'classes')
    parts = {Path(picture.path).name: picture.part for picture in found.pictures}
    assert all(parts[name] == parts[f'copy of {name}'] for name in parts if not name.startswith('copy'))
    for part in ('train', 'val'):
        assert set().union(*(picture.labels for picture in found.of(part))) == set(NAMES)


def test_copies_of_one_picture_cannot_be_divided(sets, tmp_path):
    picture = next((sets / 'class_folders').rglob('*.png'))
    for name in ('x/0.png', 'x/1.png', 'y/0.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(picture, tmp_path / name)
    with pytest.raises(OwnDataError, match=r'3 copies of one annotated picture .* two different ones are needed'):
        look(tmp_path, 'classes')


def test_parts_that_the_data_names(sets, tmp_path):
    assert all(
        picture.path.startswith('valid') == (picture.part == 'val') for picture in look(sets / 'yolo', 'boxes').pictures
    )
    shutil.copytree(sets / 'voc', tmp_path / 'voc')
    lists = tmp_path / 'voc' / 'ImageSets' / 'Main'
    lists.mkdir(parents=True)
    (lists / 'train.txt').write_text('000\n001\n002\n')
    (lists / 'val.txt').write_text('003\n004\n')
    found = look(tmp_path / 'voc', 'boxes')
    assert [picture.part for picture in found.pictures] == ['train'] * 3 + ['val'] * 2
    assert "pictures in no list of ImageSets: 1, 'JPEGImages/005.jpg'" in '\n'.join(found.remarks)


def test_a_trained_models_classes_keep_their_numbers(sets):
    known = [*NAMES[::-1], 'more']
    found = look(sets / 'coco', 'boxes', classes=known, whole=True)
    assert found.classes == known
    assert {picture.part for picture in found.pictures} == {'test'}
    with pytest.raises(OwnDataError, match=r'the model knows the classes plate; the data in .* has 5 others: box'):
        look(sets / 'coco', 'boxes', classes=['plate'])
