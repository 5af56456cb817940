"""``tools/visualize.py`` on small models and drawn pictures: every kind writes its figures and numbers."""

import csv
import json
import runpy
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from helpers import MINI, ROOT
from small_runs import small_config

from mmsoft.engine import visualize
from mmsoft.engine.config import load_config
from mmsoft.visualization import attention_maps

KINDS = {
    'attention': ['attention_000000000001.npz'],
    'newton': ['newton.json', 'newton.npz'],
    'spectrum': ['spectrum.json', 'spectrum.csv'],
    'field': ['receptive_field.json', 'receptive_field.csv', 'receptive_field.npz'],
    'features': ['features.npz'],
    'injectivity': ['injectivity.json'],
    'locality': ['locality.json', 'locality.csv'],
    'diagnose': ['diagnosis.json', 'diagnosis.csv'],
}


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    """A small detector's config, and the pictures of its world."""
    folder = tmp_path_factory.mktemp('visualize')
    cfg = small_config('retinanet', folder, train=2)
    cfg.model.backbone.attn = ['soft_pp', 'soft', 'inline', 'softmax']
    cfg.dump(folder / 'small.py')
    return folder, Path(cfg.data_root) / 'val2017'


def call(monkeypatch, kind, *arguments):
    monkeypatch.setattr(sys, 'argv', ['visualize.py', kind, *map(str, arguments)])
    runpy.run_path(str(ROOT / 'tools' / 'visualize.py'), run_name='__main__')


@pytest.mark.parametrize('kind', KINDS)
def test_every_kind_writes_figures_and_numbers(kind, world, tmp_path, monkeypatch, capsys):
    folder, pictures = world
    picture = pictures / '000000000001.jpg'
    call(monkeypatch, kind, folder / 'small.py', 'random', picture, '--out-dir', tmp_path)
    name = Path(KINDS[kind][0]).stem
    expected = {f'{name}.png', f'{name}.svg', *KINDS[kind]}
    assert {
        Path(line).name for line in capsys.readouterr().out.splitlines() if line.startswith(str(tmp_path))
    } == expected
    assert {file.name for file in tmp_path.iterdir()} == expected
    assert cv2.imread(str(tmp_path / f'{name}.png')).std() > 5
    for file in KINDS[kind]:
        if file.endswith('.json'):
            assert json.loads((tmp_path / file).read_text())
        elif file.endswith('.csv'):
            assert list(csv.DictReader((tmp_path / file).open()))
        else:
            assert all(value.size for value in np.load(tmp_path / file).values())


def test_models_are_compared_with_a_checkpoints_weights(world, tmp_path, monkeypatch):
    """Weights of the file, not those of the start; the numbers are the function's; heads have a figure each."""
    folder, pictures = world
    start = visualize.open_viewer(folder / 'small.py', 'random', 'cpu')
    for parameter in start.model.backbone.parameters():
        parameter.data.mul_(1.5)
    torch.save(dict(state_dict=start.model.state_dict()), tmp_path / 'w.pth')
    picture = pictures / '000000000002.jpg'
    arguments = [folder / 'small.py', tmp_path / 'w.pth', picture, '--out-dir', tmp_path / 'out', '--stages', 2]
    beside = ['--beside', folder / 'small.py', 'random', '--query', 0.2, 0.3, '--query', 1, 1, '--heads', 1, 2]
    call(monkeypatch, 'attention', *arguments, *beside)
    figures = {f'attention_000000000002_head{head}.{kind}' for head in (1, 2) for kind in ('png', 'svg')}
    assert {file.name for file in (tmp_path / 'out').iterdir()} == figures | {'attention_000000000002.npz'}
    found = np.load(tmp_path / 'out' / 'attention_000000000002.npz')
    assert list(found['models']) == ['small', 'small, start values']
    seen, layer = start.see(picture), 'stages.1.blocks.0.attn'
    maps = attention_maps(start.model, seen.image, [(0.2, 0.3)], [2], shown=seen.picture.shape[:2])
    assert maps[0].weights.shape[0] == MINI['heads'][1]
    assert np.array_equal(found[f'model1/query1/{layer}'], maps[0].weights)
    assert not np.array_equal(found[f'model2/query1/{layer}'], maps[0].weights)


@pytest.mark.parametrize('name', ['soft_pp_tiny_300e_in1k', 'retinanet_soft_pp_tiny_1x_coco'])
def test_the_picture_is_what_the_model_sees(name, world):
    _, pictures = world
    file = pictures / '000000000001.jpg'
    cfg = ROOT / 'configs' / f'{name}.py'
    options = {'test_dataloader.dataset.transform.input_size': 64} if 'in1k' in name else None
    seen = visualize.open_viewer(cfg, 'random', 'cpu', options=options).see(file)
    whole = cv2.imread(str(file))[..., ::-1]
    height, width = seen.picture.shape[:2]
    assert (height, width) == ((64, 64) if options else (800, 1200))
    assert np.abs(seen.picture.mean((0, 1)) - whole.mean((0, 1))).max() < 12  # RGB, not BGR
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)))
    back = seen.image[0, :, :height, :width] * std + mean
    assert (back.permute(1, 2, 0) - torch.from_numpy(seen.picture).float()).abs().max() < 1
    assert load_config(cfg).model.type in ('ImageClassifier', 'mmsoft.ImageClassifier', 'RetinaNet')


@pytest.mark.parametrize(
    ('kind', 'arguments', 'message'),
    [
        (
            'attention',
            ['small.py', 'random', 'PICTURE', '--query', '2', '0.5'],
            'query 2 0.5 is outside of the picture',
        ),
        ('attention', ['small.py', 'random', 'PICTURE', '--heads', '9'], 'head 9: layer stages.0.blocks.0.attn has 1'),
        ('newton', ['small.py', 'random', 'PICTURE', '--stages', '4'], 'no SOFT or SOFT++ attention in stage 4'),
        (
            'field',
            ['small.py', 'random', 'PICTURE', '--stages', '7'],
            'stage 7 gives no map; those of the model are 1 to 4',
        ),
        ('attention', ['random', 'PICTURE'], "'random' in place of a checkpoint takes start values: name the config"),
        ('attention', ['small.py', 'random'], 'no pictures: give files'),
        ('attention', ['small.py', 'random', 'small.py'], 'cannot be read as a picture'),
    ],
)
def test_faults_are_told_in_a_sentence_and_nothing_is_written(kind, arguments, message, world, tmp_path, monkeypatch):
    folder, pictures = world
    places = {'small.py': folder / 'small.py', 'PICTURE': pictures / '000000000001.jpg'}
    with pytest.raises(SystemExit) as told:
        call(monkeypatch, kind, *(places.get(part, part) for part in arguments), '--out-dir', tmp_path / 'out')
    assert str(told.value).startswith('error: ')
    assert message in str(told.value)
    assert not (tmp_path / 'out').exists()
