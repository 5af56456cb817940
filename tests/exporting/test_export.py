"""Whole models in a file: the answers of the checkpoint, at sizes that the export never saw, in both runtimes."""

import json

import numpy as np
import onnx
import own_sets
import pytest
import torch
from helpers import ROOT, exports_whole_models
from mmengine.registry import MODELS, init_default_scope
from small_exports import checkpoint_of
from small_runs import SHIPPED, WORLDS, small_config
from tensorrt import outside_of_table, types_of

from mmsoft.checkpoints import CheckpointError
from mmsoft.deploy import ModelFileError, load
from mmsoft.deploy.runtimes import KEY
from mmsoft.engine.predict import predict
from mmsoft.engine.predictor import Predictor
from mmsoft.exporting import export
from mmsoft.exporting.building import ExportError, whole_model
from mmsoft.exporting.parity import TOLERANCES, compare_answers

pytestmark = exports_whole_models


def test_a_folder_of_ones_own_gives_classes_and_pictures(tmp_path):
    cfg, root, file = (
        small_config('retinanet', tmp_path),
        own_sets.coco(tmp_path / 'my photos', 10),
        tmp_path / 'a.onnx',
    )
    torch.save(dict(meta=dict(dataset_meta=dict(classes=own_sets.NAMES)), state_dict={}), tmp_path / 'model.pth')
    with pytest.raises(ExportError, match='leave out --pictures, or --data'):
        export(cfg, 'model.pth', file, pictures=['a.jpg'], data=str(root))
    with pytest.raises(ExportError, match='name the config before the checkpoint'):
        export(None, 'model.pth', file, data=str(root))
    with pytest.raises(
        CheckpointError, match='holds no weights'
    ):  # the file has no weights: what stands before them is done
        export(cfg, str(tmp_path / 'model.pth'), file, data=str(root))
    assert cfg.model.bbox_head.num_classes == len(own_sets.NAMES)
    assert (tmp_path / 'a_data' / 'retinanet_soft_pp_tiny_1x_coco.py').is_file()
    assert not file.exists()


@pytest.fixture(scope='module', params=['retinanet', 'mask_rcnn', 'upernet', 'classifier'])
def exported(request, tmp_path_factory):
    """A folder with a checkpoint and its file."""
    folder = tmp_path_factory.mktemp(request.param)
    export(None, checkpoint_of(request.param, folder), folder / 'model.onnx')
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_the_file_answers_as_the_checkpoint_at_every_size(exported, capsys):
    predictor, models = Predictor(exported / 'model.pth', device='cpu'), [load(exported / 'model.onnx')]
    models.append(load(exported / 'model.onnx', runtime='openvino'))
    rng = np.random.default_rng(3)
    for height, width in [(64, 96), (200, 60), (33, 180), (64, 97)]:
        image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
        expected = predictor(image)
        assert expected.labels is None or len(expected.labels)
        for model in models:
            row = compare_answers(expected, model(image), TOLERANCES['fp32'])
            assert not row.worst_of(TOLERANCES['fp32']), (row, model.runtime)
    images = [rng.integers(0, 256, (50, 70, 3), dtype=np.uint8) for _ in range(3)]
    for alone, together in zip(map(models[0], images), models[0](images), strict=True):
        for name in ('boxes', 'scores', 'label_map'):
            if (value := getattr(alone, name)) is not None:
                np.testing.assert_allclose(getattr(together, name), value, atol=1e-3)


NEWER = {
    'mask_rcnn_mila_tiny_1x_coco': 'coco',  # pads maps of odd sides
    'semantic_fpn_ravlt_tiny_80k_ade20k': 'ade20k',  # enlarges by a factor
}


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('config', NEWER)
def test_newer_families_answer_as_the_checkpoint(config, tmp_path, monkeypatch):
    monkeypatch.setitem(SHIPPED, config, config)
    monkeypatch.setitem(WORLDS, config, NEWER[config])
    export(None, checkpoint_of(config, tmp_path), tmp_path / 'model.onnx')
    predictor, model = Predictor(tmp_path / 'model.pth', device='cpu'), load(tmp_path / 'model.onnx')
    rng = np.random.default_rng(3)
    for size in [(64, 96), (200, 160), (64, 97)]:
        image = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        row = compare_answers(predictor(image), model(image), TOLERANCES['fp32'])
        assert not row.worst_of(TOLERANCES['fp32']), row


def assert_same_results(ours, theirs):
    """Each entry has its like, to float32's tolerance: equal scores may change places. Masks are the other test's."""
    tolerances = dict(bbox=0.1, score=1e-3, scores=1e-3)

    def alike(one, other):
        numbers = all(np.allclose(one.get(key, 0), other.get(key, 0), 0, most) for key, most in tolerances.items())
        return numbers and all(one[key] == other[key] for key in ('image_id', 'category_id', 'labels') if key in one)

    assert len(ours) == len(theirs) > 0
    left = list(theirs)
    for one in ours:
        like = next((other for other in left if alike(one, other)), None)
        assert like, one
        left.remove(like)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_predicting_with_the_file_gives_the_same_files(exported, tmp_path):
    picture = tmp_path / 'a.png'
    import cv2

    cv2.imwrite(str(picture), np.random.default_rng(4).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    for name in ('model.pth', 'model.onnx'):
        assert predict(None, str(exported / name), [str(picture)], tmp_path / name, device='cpu').read == 1
    folders = tmp_path / 'model.pth', tmp_path / 'model.onnx'
    ours, theirs = (sorted(p.relative_to(folder) for p in folder.rglob('*.*')) for folder in folders)
    assert ours == theirs
    for name in ours:
        if name.suffix == '.png':
            a, b = (cv2.imread(str(folder / name)).astype(int) for folder in folders)
            assert np.abs(a - b).mean() < 1, name  # the borders of masks, where a pixel is on them
        elif name.name == 'results.json':
            assert_same_results(*(json.loads((folder / name).read_text()) for folder in folders))


@pytest.mark.slow
def test_a_file_is_standard_and_holds_no_maps(exported):
    model = onnx.load(exported / 'model.onnx')
    assert {entry.domain for entry in model.opset_import if entry.domain in {n.domain for n in model.graph.node}} <= {
        ''
    }
    weights = Predictor(exported / 'model.pth', device='cpu').model.state_dict().values()
    largest = max(max(value.numel() for value in weights), 20000)  # the table of grids
    assert all(np.prod(constant.dims) <= largest for constant in model.graph.initializer)
    assert not outside_of_table(exported / 'model.onnx')


def damaged(path, source, change):
    model = onnx.load(source)
    entry = next(entry for entry in model.metadata_props if entry.key == KEY)
    entry.value = change(entry.value)
    onnx.save(model, path)
    return path


@pytest.mark.slow
def test_what_cannot_be_run_gets_a_sentence(exported, tmp_path):
    newer = damaged(tmp_path / 'a.onnx', exported / 'model.onnx', lambda t: json.dumps(dict(json.loads(t), format=9)))
    with pytest.raises(ModelFileError, match=r'is of format 9, and this mmsoft reads up to 1: .* upgrade with `pip'):
        load(newer)
    with pytest.raises(ModelFileError, match=r'its metadata under .* is damaged; export it again'):
        load(damaged(tmp_path / 'b.onnx', exported / 'model.onnx', lambda text: text[:-9]))
    (tmp_path / 'c.onnx').write_bytes(b'none')
    with pytest.raises(ModelFileError, match='is no model that onnxruntime can load'):
        load(tmp_path / 'c.onnx')
    with pytest.raises(FileNotFoundError, match='there is no such model file'):
        load('nowhere.onnx')
    with pytest.raises(ValueError, match="runtime 'tensorrt' is unknown; choose one of onnxruntime, openvino"):
        load(exported / 'model.onnx', runtime='tensorrt')
    with pytest.raises(ExportError, match=r'its suffix says the format; choose one of \.onnx'):
        export(None, str(exported / 'model.pth'), tmp_path / 'model.zip')
    assert not list(tmp_path.glob('*.part'))


def test_a_folder_that_is_not_there_is_told_at_once(tmp_path):
    with pytest.raises(ExportError, match=r"nowhere/a.onnx': there is no folder .*nowhere'; make it first"):
        export(None, 'none.pth', tmp_path / 'nowhere' / 'a.onnx')


def test_a_foreign_part_is_refused(tmp_path):
    cfg = small_config('retinanet', tmp_path)
    cfg.test_dataloader.dataset.pipeline.insert(2, dict(type='Pad', size_divisor=32))
    init_default_scope('mmdet')
    from types import SimpleNamespace

    from mmsoft.engine.tasks import task_of

    built = SimpleNamespace(cfg=cfg, model=MODELS.build(cfg.model), task=task_of(cfg))
    with pytest.raises(ExportError, match='the test pipeline has the step Pad, which no file repeats'):
        whole_model(built)


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_half_precision_stays_finite(tmp_path):
    (row, *_) = export(None, checkpoint_of('classifier', tmp_path), tmp_path / 'half.onnx', precision='fp16')
    assert row.labels == 1
    stored = onnx.load(tmp_path / 'half.onnx')
    halves = [np.prod(w.dims) for w in stored.graph.initializer if w.data_type == onnx.TensorProto.FLOAT16]
    assert sum(halves) > 0.9 * sum(np.prod(weight.dims) for weight in stored.graph.initializer)
    assert str(ROOT) not in str(stored), 'paths of the machine that made the file'
    assert not outside_of_table(tmp_path / 'half.onnx')
    assert types_of(tmp_path / 'half.onnx', 'Exp') == {'FLOAT'}, 'kernels are islands of float32'
    assert types_of(tmp_path / 'half.onnx', 'Conv') == {'FLOAT16'}
    model = load(tmp_path / 'half.onnx')
    pixels = np.random.default_rng(5).uniform(0, 255, (1, 3, *model.steps['crop'])).astype(np.float32)
    for factor in (0, 1000):
        (found,) = model.run(factor * pixels, (1, 1))
        assert np.isfinite(found.scores).all()
