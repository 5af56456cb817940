"""The tools of a user's day: predictions, drawings, curves, multiply-adds, configs; real files in, real files out."""

import json

import cv2
import mmcv
import numpy as np
import pytest
import torch
from forking import run_forked
from helpers import ROOT
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from safetensors.torch import save_file

from mmsoft.checkpoints import CheckpointError
from mmsoft.datasets.layout import DataError
from mmsoft.datasets.miniature import write_world
from mmsoft.engine.browse import browse
from mmsoft.engine.complexity import count_parts, parts_table
from mmsoft.engine.config import load_config
from mmsoft.engine.predict import find_inputs, load_model, predict
from mmsoft.engine.writers import category_ids
from mmsoft.visualization import contact_sheet, curve_table, plot_curves, read_scalars

SIZE = (96, 128)
DIMS = [16, 32, 48, 64]
BACKBONE = 'backbone=dict(arch=dict(_delete_=True, dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 1, 1, 1)))'
# Random heads are sure of nothing: every score counts.
NARROW = {
    'retinanet_soft_pp_tiny_1x_coco': f'neck=dict(in_channels={DIMS}, out_channels=32), '
    'bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1), test_cfg=dict(score_thr=0.0, max_per_img=5)',
    'mask_rcnn_soft_pp_tiny_1x_coco': f'neck=dict(in_channels={DIMS}, out_channels=32), '
    'rpn_head=dict(in_channels=32, feat_channels=32), roi_head=dict(bbox_roi_extractor=dict(out_channels=32), '
    'mask_roi_extractor=dict(out_channels=32), bbox_head=dict(in_channels=32, fc_out_channels=64), '
    'mask_head=dict(in_channels=32, conv_out_channels=32, num_convs=1)), '
    'test_cfg=dict(rpn=dict(max_per_img=20), rcnn=dict(score_thr=0.0, max_per_img=5))',
    'upernet_soft_pp_tiny_160k_ade20k': f'decode_head=dict(in_channels={DIMS}, channels=16), '
    'auxiliary_head=dict(in_channels=48, channels=16)',
}
RETINANET, MASK_RCNN, UPERNET = NARROW


def tool(name, *arguments, cwd):
    return run_forked([str(ROOT / 'tools' / f'{name}.py'), *map(str, arguments)], cwd=cwd)


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp('world')
    for kind in ('coco', 'ade20k'):
        write_world(kind, root, train=4, val=3, size=SIZE)
    return root


@pytest.fixture(scope='module')
def narrow(tmp_path_factory):
    """Name of a shipped config -> path of one like it with a narrow model for small images."""
    folder = tmp_path_factory.mktemp('configs')
    for name, model in NARROW.items():
        base = ROOT / 'configs' / f'{name}.py'
        text = f'_base_ = [{str(base)!r}]\nmodel = dict({BACKBONE}, {model})\n'
        pipeline = Config.fromfile(base).test_dataloader.dataset.pipeline
        pipeline[1].scale = SIZE[::-1]
        text += f'test_dataloader = dict(dataset=dict(pipeline={[dict(step) for step in pipeline]}))\n'
        (folder / f'{name}.py').write_text(text)
    return lambda name: folder / f'{name}.py'


def weights(cfg, seed=0):
    init_default_scope(cfg.default_scope)
    torch.manual_seed(seed)
    cfg.model.backbone.init_cfg = None
    return MODELS.build(cfg.model).state_dict()


@pytest.fixture
def pictures(tmp_path, world):
    """Two of one name in two folders, one of them grey, one that is none, and a video of three frames."""
    image = cv2.imread(str(world / 'coco' / 'val2017' / '000000000001.jpg'))
    folder = tmp_path / 'pictures'
    mmcv.imwrite(image, str(folder / 'a' / 'x.png'))
    mmcv.imwrite(image[:80, :, 0], str(folder / 'b' / 'x.png'))
    (folder / 'broken.jpg').write_bytes(b'no picture')
    writer = cv2.VideoWriter(str(folder / 'clip.avi'), cv2.VideoWriter_fourcc(*'MJPG'), 10, SIZE[::-1])
    for shift in range(3):
        writer.write(np.roll(image, 10 * shift, axis=1))
    writer.release()
    return folder


def frames(path):
    return int(cv2.VideoCapture(str(path)).get(cv2.CAP_PROP_FRAME_COUNT))


@pytest.mark.slow
def test_boxes_of_pictures_and_a_video(narrow, pictures, tmp_path):
    """As a user calls it; the results load as COCO's do."""
    from pycocotools.coco import COCO

    config, out = narrow(RETINANET), tmp_path / 'out'
    classes = tuple(f'thing {i}' for i in range(80))
    torch.save(
        dict(meta=dict(dataset_meta=dict(classes=classes)), state_dict=weights(load_config(config))), tmp_path / 'w.pth'
    )
    run = tool('predict', config, tmp_path / 'w.pth', pictures, '--out-dir', out, '--score-thr', 0, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert f'{pictures / "broken.jpg"} cannot be read, skipped: ' in run.stdout
    assert '5 pictures and frames predicted, 1 files at fault' in run.stdout
    assert {str(file.relative_to(out)) for file in out.rglob('*.*')} == {
        'results.json', 'categories.json', 'drawn/a/x.png', 'drawn/b/x.png', 'drawn/clip.avi.mp4',
    }  # fmt: skip
    assert frames(out / 'drawn' / 'clip.avi.mp4') == 3
    original, drawn = cv2.imread(str(pictures / 'a' / 'x.png')), cv2.imread(str(out / 'drawn' / 'a' / 'x.png'))
    assert original.shape == drawn.shape
    assert (original != drawn).any()

    results, truth = json.loads((out / 'results.json').read_text()), COCO()
    named = json.loads((out / 'categories.json').read_text())
    assert [entry['name'] for entry in named['categories']] == list(classes)
    assert 'counted from 1' in named['ids_from']
    truth.dataset = dict(images=[dict(id=i) for i in range(1, 6)], categories=named['categories'], annotations=[])
    truth.createIndex()
    loaded = truth.loadRes(str(out / 'results.json'))
    assert len(loaded.getImgIds()) == 5
    assert {(entry['file_name'], entry.get('frame')) for entry in results} == {
        ('a/x.png', None), ('b/x.png', None), *(('clip.avi', frame) for frame in range(3)),
    }  # fmt: skip
    for entry in results:
        x, y, width, height = entry['bbox']
        assert 1 <= entry['category_id'] <= 80
        assert min(x, y, width, height) >= 0
        assert x + width <= SIZE[1] + 1e-3
        assert y + height <= SIZE[0] + 1e-3


@pytest.mark.slow
def test_masks_and_category_ids(narrow, world, pictures, tmp_path):
    from pycocotools import mask

    cfg = load_config(narrow(MASK_RCNN), dict(data_root=str(world / 'coco')))
    save_file(weights(cfg), tmp_path / 'w.safetensors')
    summary = predict(cfg, str(tmp_path / 'w.safetensors'), [str(pictures / 'b' / 'x.png')], tmp_path, drawings=False)
    assert summary == (1, {})
    results = json.loads((tmp_path / 'results.json').read_text())
    assert results
    assert all(mask.decode(entry['segmentation']).shape == (80, SIZE[1]) for entry in results)
    assert not (tmp_path / 'drawn').exists()
    categories = json.loads((tmp_path / 'categories.json').read_text())
    assert categories['ids_from'].endswith('instances_val2017.json')
    assert categories['categories'][-1] == dict(id=80, name='toothbrush')  # as the miniature world counts
    cfg = load_config(narrow(MASK_RCNN), dict(data_root='nowhere'))
    names = [entry['name'] for entry in categories['categories']]
    ids, source = category_ids(cfg, names)
    assert (ids[0], ids[11], ids[-1], source) == (1, 13, 90, 'COCO')
    assert category_ids(cfg, ('cat', 'unicorn'))[0] == [1, 2]


@pytest.mark.slow
def test_label_maps(narrow, pictures, tmp_path):
    cfg = load_config(narrow(UPERNET))
    torch.save(weights(cfg), tmp_path / 'w.pth')
    summary = predict(cfg, str(tmp_path / 'w.pth'), [str(pictures)], tmp_path / 'out')
    assert (summary.read, list(summary.unreadable)) == (5, [str(pictures / 'broken.jpg')])
    for name, height in (('a/x', SIZE[0]), ('b/x', 80), ('clip/000002', SIZE[0])):
        labels = cv2.imread(str(tmp_path / 'out' / 'labels' / f'{name}.png'), cv2.IMREAD_UNCHANGED)
        assert labels.shape == (height, SIZE[1])
        assert labels.dtype == np.uint8
        assert labels.max() < 150
    assert frames(tmp_path / 'out' / 'drawn' / 'clip.avi.mp4') == 3
    only_broken = predict(cfg, str(tmp_path / 'w.pth'), [str(pictures / '*.jpg')], tmp_path / 'none')
    assert (only_broken.read, len(only_broken.unreadable)) == (0, 1)


def test_wrong_weights_classes_and_inputs_are_refused(narrow, pictures, tmp_path):
    cfg = load_config(narrow(RETINANET))
    state = weights(cfg)
    state['bbox_head.extra'] = state.pop('bbox_head.retina_cls.bias')
    torch.save(state, tmp_path / 'w.pth')
    with pytest.raises(CheckpointError, match=r'missing +1 [^\n]+\n +bbox_head.retina_cls.bias\nunexpected +1 '):
        load_model(cfg, tmp_path / 'w.pth', 'cpu')
    state['bbox_head.retina_cls.bias'] = state.pop('bbox_head.extra')
    torch.save(dict(state_dict=state, meta=dict(dataset_meta=dict(classes=('one',)))), tmp_path / 'w.pth')
    with pytest.raises(ValueError, match='the model has 80 classes, but the checkpoint names 1; name'):
        load_model(cfg, tmp_path / 'w.pth', 'cpu')
    with pytest.raises(FileNotFoundError, match="input 'no_such_folder': no picture or video there"):
        find_inputs([str(pictures), 'no_such_folder'])
    assert list(find_inputs([str(pictures / '*' / 'x.png'), str(pictures / 'a')])) == ['a/x.png', 'b/x.png']
    assert list(find_inputs([str(pictures)], skip=[pictures / 'a', pictures / 'b'])) == ['broken.jpg', 'clip.avi']


def write_run(work_dir, name, rows, cut=''):
    folder = work_dir / name / 'vis_data'
    folder.mkdir(parents=True)
    text = ''.join(json.dumps(row) + '\n' for row in rows) + cut
    (folder / 'scalars.json').write_text(text)
    (folder / f'{name}.json').write_text(text)  # as MMEngine writes both


@pytest.mark.slow
def test_curves_of_a_resumed_run(tmp_path):
    def training(step, loss):
        return dict(lr=0.1 / step, loss=loss, loss_cls=loss / 2, time=0.5, epoch=step // 10, iter=step, step=step)

    first = [training(10, 4.0), {'coco/bbox_mAP': 0.2, 'time': 9.0, 'step': 1}, training(20, 3.0), training(30, 9.0)]
    write_run(tmp_path, '20260101_000000', first, cut='{"lr": 0.1, "lo')
    write_run(tmp_path, '20260102_000000', [training(20, 2.5), {'coco/bbox_mAP': 0.1, 'step': 2}])
    scalars = read_scalars(tmp_path)
    assert scalars['loss'] == ([10, 20], [4.0, 2.5])  # step 30 was not reached again
    assert scalars['coco/bbox_mAP'] == ([1, 2], [0.2, 0.1])
    assert scalars['time'] == ([10, 20], [0.5, 0.5])
    write_run(tmp_path / 'again', '1', first)
    write_run(tmp_path / 'again', '2', first[:1])
    assert 'coco/bbox_mAP' not in read_scalars(tmp_path / 'again')  # of a training that began anew
    file = tmp_path / '20260101_000000' / 'vis_data' / 'scalars.json'
    assert read_scalars(file)['loss'][0] == [10, 20, 30]
    out = tmp_path / 'pictures' / 'curves.png'
    run = tool('analyze_logs', tmp_path, file, '--out', out, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert cv2.imread(str(out)).shape[0] > 200
    row = next(line for line in run.stdout.splitlines() if 'coco/bbox_mAP' in line)
    assert row.split() == ['coco/bbox_mAP', '0.1', '2', '0.2', '1']
    assert 'loss_cls' not in curve_table([tmp_path])
    with pytest.raises(ValueError, match='--keys mIoU: no log has it; they have lr, loss, loss_cls'):
        plot_curves([tmp_path], out, ['mIoU'])
    file.write_text('{"lr"\n' + json.dumps(training(10, 1.0)))
    with pytest.raises(ValueError, match=r'scalars\.json, line 1: not a row'):
        read_scalars(file)
    with pytest.raises(FileNotFoundError, match='has no logs'):
        read_scalars(tmp_path / 'pictures')


@pytest.mark.parametrize('name', NARROW)
def test_multiply_adds_of_the_parts_add_up(narrow, name):
    parts, remarks = count_parts(load_config(narrow(name)), (100, 130))
    *inner, total = parts
    outer = [part for part in inner if not part.name.startswith(' ')]
    stages = [part for part in inner if part.name.startswith(' ')]
    assert sum(part.parameters for part in outer) == total.parameters
    assert sum(part.macs or 0 for part in outer) == total.macs
    assert sum(part.macs for part in stages) == outer[0].macs
    assert [part.name for part in outer if part.macs is None] == ['auxiliary_head'] * (name == UPERNET)
    assert all(part.macs > 0 for part in outer if part.name != 'auxiliary_head')
    assert remarks[0] == 'one image of 100 x 130' + ', padded to 128 x 160' * (name != UPERNET)
    assert any('20 proposals' in remark and '20 masks' in remark for remark in remarks) == (name == MASK_RCNN)
    table = parts_table(parts, remarks).splitlines()
    assert len(table) == 2 + len(parts) + 1 + len(remarks)


def test_multiply_adds_of_a_head_by_hand(narrow):
    """One 3 x 3 convolution a branch, then 9 anchors with 80 classes and 4 offsets, on five levels."""
    parts, _ = count_parts(load_config(narrow(RETINANET)), (128, 128))
    pixels = sum(side**2 for side in (16, 8, 4, 2, 1))
    found = next(part.macs for part in parts if part.name == 'bbox_head')
    assert found == pixels * 9 * 32 * (2 * 32 + 9 * 80 + 9 * 4)


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'world_name'), [(MASK_RCNN, 'coco'), (UPERNET, 'ade/ADEChallengeData2016')])
def test_browsing_draws_what_the_model_sees(narrow, world, tmp_path, name, world_name):
    options = dict(data_root=str(world / world_name))
    with pytest.raises(DataError):
        browse(load_config(narrow(name), dict(data_root=str(tmp_path))), tmp_path / 'none')
    sheet = browse(load_config(narrow(name), options), tmp_path / 'train', 'train', count=2)
    assert len(list((tmp_path / 'train').glob('*.png'))) == 3
    assert cv2.imread(str(sheet)).shape[0] > 100
    browse(load_config(narrow(name), options), tmp_path / 'test', 'test', count=50)
    drawn = sorted((tmp_path / 'test').glob('[0-9]*.png'))
    assert len(drawn) == 3
    assert all(cv2.imread(str(file)).shape == (*SIZE, 3) for file in drawn)


def test_a_contact_sheet_of_different_sizes(tmp_path):
    grey = [np.full((height, width, 3), 100, np.uint8) for height, width in ((50, 80), (80, 50), (400, 900), (1, 1))]
    contact_sheet(grey, tmp_path / 'new' / 'sheet.png', columns=3, titles=['a', 'b' * 200, 'c', 'd'])
    height, width = cv2.imread(str(tmp_path / 'new' / 'sheet.png')).shape[:2]
    assert width > 3 * 480
    assert height > 2 * 213
    with pytest.raises(ValueError, match='no images'):
        contact_sheet([], tmp_path / 'sheet.png')


@pytest.mark.slow
def test_a_printed_config_is_the_same_config(tmp_path):
    source = ROOT / 'configs' / f'{MASK_RCNN}.py'
    run = tool(
        'print_config', source, '--cfg-options', 'model.backbone.arch=small', '--out', tmp_path / 'out.py', cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    expected = load_config(source, {'model.backbone.arch': 'small'})
    assert Config.fromfile(tmp_path / 'out.py').to_dict() == expected.to_dict()
    assert Config.fromstring(run.stdout, '.py').to_dict() == expected.to_dict()
    assert '_base_' not in run.stdout
