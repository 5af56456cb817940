"""Names of files and classes from data: nothing is written elsewhere or twice, and nothing is drawn or logged wrong."""

import json
import logging
import os
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmsoft.engine.hooks import InvalidLossError, StopAtInvalidLoss
from mmsoft.engine.logs import LogKeeper
from mmsoft.files import json_name, json_text, name_from_json, place_below, places_below, shown
from mmsoft.visualization import contact_sheet, draw_sample, plot_curves

ORDINARY = [
    'a.jpg',
    'sub/a.jpg',
    'ü und ß.png',
    '..%2fa.jpg',
    '...jpg',
    'a b\u202fc.png',
    '-rf',
    '~',
    '$x',
    '%2e%2e/a',
    'a..b',
]
WILD = [
    *('', '.', '..', '/', '../a.jpg', '/etc/passwd', 'a/../../b.jpg', './a', 'a//b', 'a/', 'a\\..\\b.jpg', 'C:\\a.jpg'),
    *('a\nb.jpg', '\x00.jpg', '\udce9.jpg', '\ud800.jpg', 'x' * 300 + '.jpg', 'é' * 150, '\u202egpj.exe', '\x1b[2J'),
]


def test_places_are_below_and_apart(tmp_path: Path) -> None:
    for name in ORDINARY:
        assert place_below(tmp_path, name) == tmp_path / name
    places = [place_below(tmp_path, name) for name in WILD]
    assert len(set(places)) == len(places)
    for place in places:
        assert place.parent == tmp_path
        place.write_bytes(b'')
        assert len(str(place.name).encode()) < 100
    assert [place.suffix for place in places if 'passwd' not in place.name].count('.jpg') == 9


@pytest.mark.parametrize(
    'name', ['C:a.jpg', 'a.jpg:stream', 'con', 'sub/NUL.png', 'COM1.jpg', 'a.', 'a ', 'a?.jpg', 'a|b', '"a"']
)
def test_windows_has_names_of_its_own(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_below(tmp_path, name) == tmp_path / name
    monkeypatch.setattr('mmsoft.files.WINDOWS', True)
    place = place_below(tmp_path, name).name
    assert place == shown(place)
    assert not set(place) & set('<>:"|?*')
    assert not PureWindowsPath(place).drive
    assert PureWindowsPath(place).stem.lower() not in {'con', 'nul', 'com1'}


def test_places_do_not_meet(tmp_path: Path) -> None:
    wanted = {
        'a/b.jpg': 'a/b.jpg',
        'a/b.png': 'a/b.jpg',
        'A/B.jpg': 'A/B.jpg',
        'a': 'a',
        'a/b.jpg/c.jpg': 'a/b.jpg/c.jpg',
        'e\u0301.jpg': 'e\u0301.jpg',
        '\u00e9.jpg': '\u00e9.jpg',
    }
    wanted[place_below(tmp_path, '../x.jpg').name] = place_below(tmp_path, '../x.jpg').name  # a name made to meet
    wanted['../x.jpg'] = '../x.jpg'
    places = places_below(tmp_path, wanted)
    assert len({str(place).casefold() for place in places.values()}) == len(wanted)
    for name, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open('x') as file:
            file.write(json.dumps(name))
    assert places['a/b.jpg'] == tmp_path / 'a' / 'b.jpg'
    assert places == places_below(tmp_path, wanted)


def test_names_in_json_are_unicode_and_come_back() -> None:
    for name in ('a.jpg', 'é\n.jpg', os.fsdecode(b'caf\xe9%.jpg')):
        text = json.dumps(json_name('file', name)).encode()
        assert json.loads(text)['file'].encode()
        assert name_from_json('file', json.loads(text)) == name
        assert json.dumps(json_text(name)).encode() in text


def test_an_invalid_loss_and_the_scalars_name_what_json_can_hold(tmp_path: Path) -> None:
    from mmengine.visualization import LocalVisBackend, Visualizer

    names = ['a.jpg', os.fsdecode(b'caf\xe9.jpg')]
    batch = dict(data_samples=[SimpleNamespace(img_path=name) for name in names])
    runner = SimpleNamespace(iter=3, rank=0, work_dir=str(tmp_path))
    with pytest.raises(InvalidLossError):
        StopAtInvalidLoss().after_train_iter(runner, 0, batch, dict(loss=torch.tensor(float('nan'))))
    report = json.loads((tmp_path / 'invalid_loss_rank0.json').read_text())
    assert report == dict(iteration=4, files=['a.jpg', 'caf\\xe9.jpg'], files_bytes=['a.jpg', 'caf%E9.jpg'])
    visualizer = Visualizer(vis_backends=[dict(type='LocalVisBackend')], save_dir=str(tmp_path))
    LogKeeper([]).watch(visualizer)
    visualizer.add_scalars({f'{names[1]}_precision': 0.5}, step=1)
    (backend,) = visualizer._vis_backends.values()
    assert isinstance(backend, LocalVisBackend)
    row = json.loads((tmp_path / 'vis_data' / 'scalars.json').read_text())
    assert row == {'caf\\xe9.jpg_precision': 0.5, 'step': 1}


CLASSES = ['$\\frac$', 'a\n\x1b[2J', os.fsdecode(b'b\xe9'), '$5 or $6', '']


@pytest.mark.parametrize('kind', ['boxes', 'labels', 'class'])
def test_class_names_are_drawn_as_they_are(kind: str) -> None:
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData, PixelData
    from mmseg.structures import SegDataSample

    from mmsoft.datasets.class_folders import ClassSample

    image, count = np.zeros((64, 96, 3), np.uint8), len(CLASSES)
    if kind == 'boxes':
        boxes = torch.tensor([[5.0, 5, 60, 60]]).repeat(count, 1)
        found = InstanceData(bboxes=boxes, labels=torch.arange(count), scores=torch.ones(count))
        samples = [DetDataSample(pred_instances=found)]
    elif kind == 'labels':
        labels = torch.arange(count).repeat_interleave(20).repeat(64, 1)[None, :, :96]
        samples = [SegDataSample(pred_sem_seg=PixelData(data=labels))]
    else:
        samples = [ClassSample(pred_scores=scores) for scores in torch.eye(count)]
    for sample in samples:
        assert draw_sample(image, sample, dict(classes=CLASSES)).any()


def test_titles_and_curves_take_any_name(tmp_path: Path) -> None:
    contact_sheet([np.zeros((20, 20, 3), np.uint8)] * len(CLASSES), tmp_path / 'sheet.png', titles=CLASSES)
    folder = tmp_path / '$\\frac$' / 'vis_data'
    folder.mkdir(parents=True)
    rows = [{f'{name}_loss': 1.0, 'lr': 0.1, 'step': step} for name in CLASSES for step in (1, 2)]
    (folder / 'scalars.json').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    plot_curves([folder.parent], tmp_path / 'curves.png')


def test_letters_beyond_ascii_are_drawn(tmp_path: Path) -> None:
    for name in ('ä', 'ö'):
        contact_sheet([np.zeros((40, 40, 3), np.uint8)], tmp_path / f'{name}.png', titles=[name])
    assert (tmp_path / 'ä.png').read_bytes() != (tmp_path / 'ö.png').read_bytes()


def test_names_do_not_steer_a_log(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    from mmengine.logging import MMLogger
    from mmengine.visualization import Visualizer

    logger = MMLogger('names', log_file=str(tmp_path / 'log'))
    visualizer = Visualizer()
    visualizer.dataset_meta = dict(classes=CLASSES)
    keeper = LogKeeper(logger.handlers)
    keeper.watch(visualizer)
    for name in CLASSES:
        logger.info(f'a table\n{name}: 1')
    logger.log(logging.WARNING, '%s cannot be read', 'x\x1b]0;title\x07\r.jpg')
    text = (tmp_path / 'log').read_text(encoding='utf-8')
    assert not set(text) & set('\x1b\x07\r')
    assert r'a\n\x1b[2J: 1' in text
    assert r'b\xe9: 1' in text
    assert text.count('a table\n') == len(CLASSES)
    assert 'Logging error' not in capsys.readouterr().err
