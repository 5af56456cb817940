"""Python in five lines: pictures of any kind in, what a model finds out; from a checkpoint alone, whoever wrote it."""

import json
from contextlib import suppress
from pathlib import Path

import cv2
import mmdet
import numpy as np
import pytest
import torch
from helpers import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from small_runs import SIZE, run, small_checkpoint

from mmsoft import Predictor
from mmsoft.checkpoints import CheckpointError
from mmsoft.engine.carried import carried_config, registered_names
from mmsoft.engine.predict import predict
from mmsoft.engine.tasks import task_of

METHODS = ('retinanet', 'mask_rcnn', 'upernet', 'classifier')


def picture(seed, height=SIZE[0], width=SIZE[1]):
    return np.random.default_rng(seed).integers(256, size=(height, width, 3), dtype=np.uint8)


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    """Two of one size, one of another, a video of three frames."""
    folder = tmp_path_factory.mktemp('pictures')
    for name, image in dict(a=picture(0), b=picture(1), c=picture(2, 60, 60)).items():
        cv2.imwrite(str(folder / f'{name}.png'), image)
    writer = cv2.VideoWriter(str(folder / 'clip.avi'), cv2.VideoWriter_fourcc(*'MJPG'), 10, SIZE[::-1])
    for seed in range(3):
        writer.write(picture(seed))
    writer.release()
    return folder


def arrays(prediction):
    found = (prediction.boxes, prediction.labels, prediction.scores, prediction.masks, prediction.label_map)
    return [array for array in found if array is not None]


def assert_equal(one, other):
    for first, second in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('method', METHODS)
def test_pictures_of_any_kind_in_five_lines(method, pictures, tmp_path):
    cfg, path = small_checkpoint(method, tmp_path)
    predictor = Predictor(path, device='cpu')
    found = predictor(str(pictures / 'a.png'))
    assert len(arrays(found)) == dict(retinanet=3, mask_rcnn=4, upernet=1, classifier=2)[method]
    if found.boxes is not None:
        assert found.boxes.shape == (5, 4)
        assert found.names == [predictor.meta['classes'][label] for label in found.labels]
    if found.masks is not None:
        assert found.masks.shape == (5, *SIZE)
    if found.label_map is not None:
        assert found.label_map.shape == SIZE
    if method == 'classifier':
        assert found.scores.sum() == pytest.approx(1, abs=1e-5)
        assert (np.diff(found.scores) <= 0).all()
        assert len(found.names) == 6
    drawn = found.draw(score_thr=0)
    assert drawn.mode == 'RGB'
    assert drawn.size[0] >= SIZE[1]
    assert_equal(found, Predictor(path, cfg, device='cpu')(pictures / 'a.png'))
    pixels = cv2.imread(str(pictures / 'a.png'))
    assert_equal(found, predictor(pixels))
    assert_equal(found, predictor(Image.fromarray(pixels[..., ::-1].copy())))
    many = predictor(pictures, batch_size=2)
    assert [(entry.name[-5:], entry.frame) for entry in many[:3]] == [('a.png', None), ('b.png', None), ('c.png', None)]
    assert [entry.frame for entry in many[3:]] == [0, 1, 2]
    for entry in many[:3]:
        assert_equal(entry, predictor(entry.image))
    assert [type(predictor([pixels])), len(predictor([pixels, pictures / 'c.png']))] == [list, 2]
    with pytest.raises(ValueError, match=r'array \(H, W, 3\) of uint8 in BGR, or one of Pillow; got float32 \(4, 4\)'):
        predictor(np.zeros((4, 4), np.float32))


def test_options_change_the_carried_config(pictures, tmp_path):
    _, path = small_checkpoint('retinanet', tmp_path)
    few = Predictor(path, device='cpu', options={'model.test_cfg.max_per_img': 2})
    assert len(few(pictures / 'a.png').boxes) == 2
    with pytest.raises(ValueError, match=r"option 'modle\.neck': predicting reads no such part; the config has model"):
        Predictor(path, device='cpu', options={'modle.neck': 2})


def test_a_batch_goes_through_the_model_together(pictures, tmp_path, monkeypatch):
    predictor, sizes = Predictor(small_checkpoint('retinanet', tmp_path)[1]), []
    forward = predictor.model.test_step
    monkeypatch.setattr(predictor.model, 'test_step', lambda data: sizes.append(len(data['inputs'])) or forward(data))
    predictor([picture(0), picture(1), picture(2), picture(3, 60, 60)], batch_size=2)
    assert sizes == [2, 1, 1]


@pytest.mark.slow
def test_the_command_takes_the_checkpoint_alone(pictures, tmp_path):
    _, path = small_checkpoint('retinanet', tmp_path)
    run('predict', path, pictures / 'a.png', pictures / 'b.png', '--out-dir', tmp_path / 'alone', '--no-drawings')
    found = json.loads((tmp_path / 'alone' / 'results.json').read_text())
    assert {entry['file_name'] for entry in found} == {'a.png', 'b.png'}
    torch.save(torch.load(path)['state_dict'], tmp_path / 'bare.pth')
    done = run('predict', tmp_path / 'bare.pth', pictures, '--out-dir', tmp_path / 'none', check=False)
    assert done.returncode
    assert done.stderr.splitlines()[-1].endswith('bare.pth holds weights and no config: name the config file as well')


HOSTILE = {
    "model = dict(type='os.system', command='touch ran')": "has 'os.system', which may run code",
    "model = dict(type='mmengine.mkdir_or_exist', dir_name='ran')": 'mkdir_or_exist is not in the mmengine::model',
    "model = dict(type='evil')": 'evil is not in the mmengine::model registry',
    "model = dict(type='evil', _scope_='evil')": 'evil is not in the mmengine::model registry',
    'model = dict(type=\'FCN\', nms=dict(type=\'open("ran", "w")\'))': 'which may run code',
    "model = dict(type='FCN', nms=dict(type='[0 for x.y in z]'))": 'which may run code',
    "model = dict(type='FCN', nms=dict(type='{0 for x.y in z}'))": 'which may run code',
    "model = dict(type='FCN', teacher_config='evil.py')": "has 'teacher_config', which may run code",
    "model = open('ran', 'w')": 'is not made of plain values alone',
    "default_scope = 'evil'; model = dict(type='FCN')": "has the scope 'evil', none of OpenMMLab's",
    "custom_imports = dict(imports=['evil'])": 'has no model: name the config file as well',
}


@pytest.mark.parametrize('text', HOSTILE)
def test_a_hostile_config_is_not_run(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'evil').mkdir()
    for name in ('evil.py', 'evil/__init__.py', 'evil/registry.py'):
        (tmp_path / name).write_text('open("ran", "w")')
    text = f'{text}\ntest_dataloader = dict(dataset=dict(type="evil.X", pipeline=[]))\n'
    init_default_scope('mmengine')
    with pytest.raises(CheckpointError, match=HOSTILE[text.splitlines()[0]]):
        with registered_names('x.pth'):
            MODELS.build(carried_config(dict(meta=dict(cfg=text)), 'x.pth').model)
    assert not (tmp_path / 'ran').exists()


def test_sentences_with_a_place_for_a_name_are_plain():
    """Of SAN, which asks CLIP for each class."""
    text = "model = dict(type='FCN', templates=['a photo of a {}.'])\ntest_dataloader = dict(dataset=dict(type='X'))\n"
    assert carried_config(dict(meta=dict(cfg=text)), 'x.pth').model.templates == ['a photo of a {}.']


def test_a_hostile_checkpoint_runs_nothing_else(pictures, tmp_path, monkeypatch):
    """Its model is sound; its scope, data set and pipeline are not."""
    cfg, path = small_checkpoint('retinanet', tmp_path)
    (tmp_path / 'evil.py').write_text('open("ran", "w")')
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    content = torch.load(path)
    for text in (
        cfg.pretty_text.replace("default_scope = 'mmdet'", "default_scope = 'evil'"),
        cfg.pretty_text.replace("type='CocoDataset'", "type='evil.Data'"),
        cfg.pretty_text.replace("type='LoadImageFromFile'", "type='evil.load'"),
        cfg.pretty_text + "\ncustom_imports = dict(imports=['evil'])",
    ):
        assert text != cfg.pretty_text
        content['meta']['cfg'] = text
        torch.save(content, path)
        with suppress(Exception):
            Predictor(path, device='cpu')(pictures / 'a.png')
        assert not (tmp_path / 'ran').exists()


def test_results_have_the_ids_of_the_data_set(pictures, tmp_path):
    """A benchmark that reads results.json compares pictures by them; others get numbers that are free."""
    cfg, path = small_checkpoint('retinanet', tmp_path)
    file = Path(cfg.test_evaluator.ann_file)
    content = json.loads(file.read_text())
    for image in content['images']:
        image['id'] *= 700
    file.write_text(json.dumps(content))
    inputs = [str(pictures / 'a.png'), str(file.parents[1] / 'val2017')]
    predict(cfg, str(path), inputs, tmp_path / 'out', 'cpu', drawings=False)
    found = json.loads((tmp_path / 'out' / 'results.json').read_text())
    ids = {Path(entry['file_name']).name: entry['image_id'] for entry in found}
    names = {f'{number:012d}.jpg': 700 * number for number in range(1, 5)}
    assert {name: ids[name] for name in names} == names
    assert ids.keys() == {*names, 'a.png'}
    assert ids['a.png'] > 2800
    predict(cfg, str(path), inputs[:1], tmp_path / 'alone', 'cpu', drawings=False)
    assert {entry['image_id'] for entry in json.loads((tmp_path / 'alone' / 'results.json').read_text())} == {1}


def test_a_model_with_a_teacher_predicts_with_its_config(pictures, tmp_path):
    """Of the zoo's localization distillation, whose config names another one, which a checkpoint alone may not."""
    zoo = Path(mmdet.__file__).with_name('.mim') / 'configs'
    cfg = Config.fromfile(zoo / 'ld/ld_r18-gflv1-r101_fpn_1x_coco.py')
    cfg.model.update(teacher_config=str(zoo / 'gfl/gfl_r50_fpn_1x_coco.py'), teacher_ckpt=None)
    cfg.model.backbone = dict(type='mmsoft.SOFT', arch=MINI, out_indices=(0, 1, 2, 3))
    cfg.model.neck.in_channels = list(MINI['dims'])
    cfg.model.test_cfg.update(score_thr=0.0, max_per_img=5)
    init_default_scope('mmdet')
    path = tmp_path / 'ld.pth'
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(cfg=cfg.pretty_text)), path)
    assert len(Predictor(path, cfg, device='cpu')(pictures / 'a.png').boxes) == 5
    with pytest.raises(CheckpointError, match="has 'teacher_config', which may run code: name the config file as well"):
        Predictor(path, device='cpu')


def test_classes_that_a_model_gives_as_floats_have_names(pictures, tmp_path):
    """CrowdDet's labels are a column of its boxes."""
    zoo = Path(mmdet.__file__).with_name('.mim') / 'configs'
    cfg = Config.fromfile(zoo / 'crowddet/crowddet-rcnn_r50_fpn_8xb2-30e_crowdhuman.py')
    cfg.model.backbone = dict(type='mmsoft.SOFT', arch=MINI, out_indices=(0, 1, 2, 3))
    cfg.model.neck.in_channels = list(MINI['dims'])
    cfg.model.test_cfg.rcnn.score_thr = 0.0
    init_default_scope('mmdet')
    path = tmp_path / 'crowd.pth'
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(cfg=cfg.pretty_text)), path)
    found = Predictor(path, device='cpu')(pictures / 'a.png')
    assert set(found.names) == {'person'}
    assert predict(None, str(path), [str(pictures / 'a.png')], tmp_path / 'out', 'cpu', score_thr=0.0) == (1, {})
    assert {entry['category_id'] for entry in json.loads((tmp_path / 'out' / 'results.json').read_text())} == {1}


def test_classes_of_a_student_are_counted(pictures, tmp_path):
    """Of Soft Teacher, whose heads are within two detectors, each behind an RPN that tells objects from none."""
    zoo = Path(mmdet.__file__).with_name('.mim') / 'configs'
    cfg = Config.fromfile(zoo / 'soft_teacher/soft-teacher_faster-rcnn_r50-caffe_fpn_180k_semi-0.01-coco.py')
    cfg.model.detector.backbone = dict(type='mmsoft.SOFT', arch=MINI, out_indices=(0, 1, 2, 3))
    cfg.model.detector.neck.in_channels = list(MINI['dims'])
    init_default_scope('mmdet')
    path = tmp_path / 'soft_teacher.pth'
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=dict(cfg=cfg.pretty_text)), path)
    predictor = Predictor(path, device='cpu')
    assert len(predictor.meta['classes']) == 80
    assert predictor(pictures / 'a.png').boxes is not None


def test_a_model_of_films_is_a_sentence():
    zoo = Path(mmdet.__file__).with_name('.mim') / 'configs'
    cfg = Config.fromfile(zoo / 'masktrack_rcnn/masktrack-rcnn_mask-rcnn_r50_fpn_8xb1-12e_youtubevis2019.py')
    with pytest.raises(ValueError, match='MaskTrackRCNN takes films, whose frames belong together, and no pictures'):
        task_of(cfg).steps(cfg)


def test_proposals_are_objects_of_no_class(pictures, tmp_path):
    """An RPN is told the classes of its data, and knows none of them."""
    cfg = Config.fromfile(Path(mmdet.__file__).with_name('.mim') / 'configs/rpn/rpn_r50_fpn_1x_coco.py')
    cfg.model.backbone = dict(type='mmsoft.SOFT', arch=MINI, out_indices=(0, 1, 2, 3))
    cfg.model.neck.in_channels = list(MINI['dims'])
    init_default_scope('mmdet')
    meta = dict(cfg=cfg.pretty_text, dataset_meta=dict(classes=('cat', 'dog')))
    torch.save(dict(state_dict=MODELS.build(cfg.model).state_dict(), meta=meta), tmp_path / 'rpn.pth')
    found = Predictor(tmp_path / 'rpn.pth', device='cpu')(pictures / 'a.png')
    assert set(found.names) == {'object'}
    assert found.draw().size == SIZE[::-1]
