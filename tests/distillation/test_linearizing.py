"""``tools/linearize.py``: a trained detector, segmentor or classifier in, a linear one out that our tools take."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from functools import partial
from types import SimpleNamespace

import own_sets
import pytest
import timm
import torch
import torchvision
from helpers import MINI
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from small_runs import ENVIRONMENT, command, dump, losses, run, small_config
from teachers import pvt_file

from mmsoft.checkpoints import CheckpointError, read_state_dict
from mmsoft.datasets.layout import DataError
from mmsoft.datasets.miniature import write_world
from mmsoft.distillation.linearizing import copy_model, linearize_run, open_source
from mmsoft.distillation.pictures import check_pictures, find_pictures
from mmsoft.distillation.report import agreement
from mmsoft.distillation.reporting import _summary, check_report, report_places, report_run
from mmsoft.distillation.sources import TeacherError
from mmsoft.engine.predictor import Predictor
from mmsoft.engine.tasks import CLASSIFICATION, DETECTION, SEMANTIC_SEGMENTATION
from mmsoft.models import InLineSwinClassifier
from mmsoft.models.family import FAMILIES

SWIN = dict(
    type='mmdet.SwinTransformer',
    embed_dims=16,
    depths=(1, 1, 2, 1),
    num_heads=(1, 2, 4, 8),
    window_size=4,
    drop_path_rate=0.1,
)


def teacher(folder, method='retinanet', classes=80, **backbone):
    """A config of the teacher on a small world, and random weights."""
    cfg = small_config(method, folder)
    cfg.model.backbone = dict(SWIN, **backbone)
    dims = [16, 32, 64, 128]
    if method == 'retinanet':
        cfg.model.neck.in_channels, cfg.model.bbox_head.num_classes = dims, classes
    else:
        cfg.model.decode_head.in_channels, cfg.model.auxiliary_head.in_channels = dims, dims[2]
    init_default_scope(cfg.default_scope)
    torch.manual_seed(0)
    model = MODELS.build(cfg.model)
    weights = folder / 'teacher.pth'
    torch.save(dict(state_dict=model.state_dict()), weights)
    return cfg, dump(cfg, folder), weights


OPTIONS = dict(steps=dict(outputs=3, maps=3), batch_size=2, workers=0)


def test_a_folder_of_ones_own_is_learned_from_and_in_the_linear_config(tmp_path):
    root = own_sets.coco(tmp_path / 'my photos', 10)
    _, path, weights = teacher(tmp_path / 'six', classes=6)
    out, images = tmp_path / 'out', [str(root)]
    source, linear, _ = linearize_run(str(path), str(weights), out, data=str(root), stages=())
    learned, reported = source.places(linear.cfg), source.places(linear.cfg, 'val')
    assert (len(learned), len(reported)) == (7, 3)
    assert sorted(learned + reported) == find_pictures(images)
    cfg = Config.fromfile(out / 'linear.py')
    assert cfg.test_dataloader.dataset.metainfo.classes == own_sets.NAMES
    assert cfg.model.bbox_head.num_classes == 6
    with pytest.raises(ValueError, match='leave out --images, or --data'):
        linearize_run(str(path), str(weights), out, data=str(root), images=images)
    with pytest.raises(TeacherError, match='give its pictures with --images'):
        linearize_run('timm:swin_tiny_patch4_window7_224', None, out, data=str(root))
    _, path, weights = teacher(tmp_path / 'eighty')
    with pytest.raises(TeacherError, match=r'bbox_head\.retina_cls.* is \(54'):
        linearize_run(str(path), str(weights), tmp_path / 'other', data=str(root), stages=())


@pytest.fixture(scope='module')
def retinanet(tmp_path_factory):
    folder = tmp_path_factory.mktemp('linear')
    cfg, path, weights = teacher(folder)
    found = linearize_run(str(path), str(weights), folder / 'out', **OPTIONS)
    return folder, cfg, path, weights, found


@pytest.mark.slow
def test_a_detector_becomes_linear(retinanet):
    folder, _, _, weights, (_, _, written) = retinanet
    assert written.keys() == {'copy', 'outputs', 'maps', 'linear'}
    before, theirs = read_state_dict(written['copy']), read_state_dict(str(weights))
    after = read_state_dict(str(written['linear']))
    assert before.keys() == after.keys()
    heads = [name for name in theirs if not name.startswith('backbone.')]
    assert heads
    assert all(torch.equal(after[name], theirs[name]) for name in heads)
    taught = {name for name in after if not torch.equal(before[name], after[name])}
    assert 'backbone.stages.2.blocks.1.attn.predictor.0.weight' in taught
    assert 'backbone.map_norms.1.weight' in taught
    only_outputs = read_state_dict(str(written['outputs']))
    changed = {name for name in after if not torch.equal(before[name], only_outputs[name])}
    assert changed
    assert all('.attn.' in name and '.stages.3.' not in name for name in changed)
    result = run('test', folder / 'out' / 'linear.py', written['linear'], '--work-dir', folder / 'tested')
    assert result.returncode == 0
    assert 'bbox_mAP' in json.dumps(json.loads((folder / 'tested' / 'metrics.json').read_text()))
    picture = next((folder / 'coco').rglob('*.jpg'))
    carried = Predictor(str(written['linear']))(str(picture))  # its own config is in it
    assert carried.boxes.shape[1] == 4
    assert (folder / 'out' / 'outputs.png').is_file()


@pytest.mark.slow
def test_a_killed_run_goes_on_to_equal_weights(retinanet, tmp_path):
    _, _, path, weights, _ = retinanet
    common = (path, weights, '--steps', 2, 12, '--batch-size', 2, '--workers', 0, '--no-report')
    run('linearize', *common, '--out', tmp_path / 'whole')
    broken = subprocess.Popen(command('linearize', *common, '--out', tmp_path / 'broken'), env=ENVIRONMENT)
    while not list((tmp_path / 'broken' / 'maps').glob('iter_*.pth')):
        assert broken.poll() is None
        time.sleep(0.02)
    broken.send_signal(signal.SIGKILL)
    broken.wait()
    assert not (tmp_path / 'broken' / 'linear.pth').exists()
    run('linearize', *common, '--out', tmp_path / 'broken', '--resume')
    first, second = (read_state_dict(str(tmp_path / name / 'linear.pth')) for name in ('whole', 'broken'))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(losses(tmp_path / 'whole' / 'maps')) == 12


@pytest.mark.slow
def test_two_processes_and_a_broken_picture(retinanet, tmp_path):
    folder, _, path, weights, _ = retinanet
    pictures = tmp_path / 'pictures'
    shutil.copytree(next((folder / 'coco').glob('train*')), pictures)
    (pictures / 'a.jpg').write_bytes(b'no picture')
    options = ('--steps', 3, 0, '--stages', 'outputs', '--batch-size', 4, '--workers', 0, '--amp', '--no-report')
    run('linearize', path, weights, '--out', tmp_path / 'out', '--images', pictures, *options, processes=2)
    assert (tmp_path / 'out' / 'linear.pth').is_file()
    assert 'a.jpg' in (tmp_path / 'out' / 'outputs' / 'faults.jsonl').read_text()


@pytest.mark.slow
def test_a_segmentor_becomes_linear(tmp_path):
    _, path, weights = teacher(tmp_path, 'upernet', type='mmseg.SwinTransformer')
    _, _, written = linearize_run(str(path), str(weights), tmp_path / 'out', inline=(1, 1, 1, 1), **OPTIONS)
    result = run('test', tmp_path / 'out' / 'linear.py', written['linear'], '--work-dir', tmp_path / 'tested')
    assert 'mIoU' in (tmp_path / 'tested' / 'metrics.json').read_text(), result.stdout[-2000:]


@pytest.mark.slow
def test_a_classifier_of_timm_becomes_linear(tmp_path):
    model = timm.create_model('vit_tiny_patch16_224', num_classes=6)
    weights = tmp_path / 'vit.pth'
    torch.save(model.state_dict(), weights)
    pictures = write_world('coco', tmp_path, train=3, val=1, size=(64, 96))
    found = linearize_run(
        'timm:vit_tiny_patch16_224', str(weights), tmp_path / 'out', images=[str(pictures)], **OPTIONS
    )  # fmt: skip
    cfg = found[1].cfg
    assert cfg.test_dataloader.dataset.transform.mean == (0.5, 0.5, 0.5)
    predicted = Predictor(str(found[2]['linear']), cfg)(str(next(pictures.rglob('*.jpg'))))
    assert len(predicted.scores) == 6


@pytest.mark.slow
def test_the_authors_pvt_file_becomes_a_backbone_with_a_new_head(tmp_path, capsys, monkeypatch):
    file = tmp_path / 'pvt.pth'
    torch.save(pvt_file((64, 64, 128, 128)), file)
    pictures = write_world('coco', tmp_path, train=3, val=1, size=(64, 96))
    source, linear, written = linearize_run(str(file), None, tmp_path / 'out', images=[str(pictures)], **OPTIONS)
    assert 'class token, which this backbone has not: the head is new' in capsys.readouterr().out
    assert linear.backbone['arch']['heads'] == (1, 1, 2, 2)
    before, after = (read_state_dict(str(written[name])) for name in ('copy', 'linear'))
    assert before.keys() == after.keys()
    taught = {name for name in after if not torch.equal(before[name], after[name])}
    assert {'backbone.stages.3.blocks.0.attn.kv.weight', 'backbone.stages.0.embed.proj.weight'} <= taught
    assert after['backbone.head.weight'].shape == (9, 128)
    assert 'backbone.head.weight' not in taught
    init_cfg = dict(type='Pretrained', checkpoint=str(written['linear']))
    backbone = MODELS.build(dict(linear.backbone, init_cfg=init_cfg))
    backbone.init_weights()
    assert torch.equal(backbone.stages[3].blocks[0].attn.kv.weight, after['backbone.stages.3.blocks.0.attn.kv.weight'])
    said = []
    monkeypatch.setattr('mmsoft.engine.predictor.announce', lambda text, level: said.append(text))
    predicted = Predictor(str(tmp_path / 'out'), Config.fromfile(tmp_path / 'out/linear.py'))
    assert len(predicted(str(next(pictures.rglob('*.jpg')))).scores) == 9
    assert any('is new, and its classes are noise' in text for text in said)
    report = report_run(source, linear, written, [str(pictures)], None, count=2, sizes=((64, 64),))[0]
    found = json.loads(report.read_text())
    assert list(found['errors']['linear'])[-4:] == ['map 0', 'map 1', 'map 2', 'map 3']
    assert found['agreement'] == {}
    assert 'the head is new' in found['summary']
    again = linearize_run(str(file), None, tmp_path / 'out', images=[str(pictures)], resume=True, **OPTIONS)[1]
    assert all(torch.equal(again.weights[name], after[name]) for name in after)


@pytest.mark.slow
def test_a_terminal_shows_how_far_a_stage_is(tmp_path):
    model = timm.create_model('vit_tiny_patch16_224', num_classes=6)
    torch.save(model.state_dict(), tmp_path / 'vit.pth')
    pictures = write_world('coco', tmp_path, train=3, val=1, size=(64, 96))
    arguments = ['timm:vit_tiny_patch16_224', str(tmp_path / 'vit.pth'), '--out', str(tmp_path / 'out')]
    arguments += ['--images', str(pictures), '--steps', '2', '3', '--batch-size', '2', '--workers', '0', '--no-report']
    ours, theirs = os.openpty()
    quiet = dict(stdout=subprocess.DEVNULL, env=dict(ENVIRONMENT, TERM='xterm', COLUMNS='120'))
    process = subprocess.Popen(command('linearize', *arguments), stderr=theirs, **quiet)
    os.close(theirs)
    shown = ''
    with contextlib.suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 4096):
            shown += part.decode(errors='replace')
    assert process.wait() == 0, shown
    assert re.search(r'outputs .*2/2.*0:00:00', shown)
    assert re.search(r'maps .*3/3.*0:00:00', shown)


def test_bad_input_is_told_of(tmp_path):
    _, path, weights = teacher(tmp_path)

    def refused(says, *arguments, kind=TeacherError, **options):
        with pytest.raises(kind, match=says):
            linearize_run(*arguments, tmp_path / 'out', **OPTIONS, **options)
        assert not (tmp_path / 'out').exists()

    empty = tmp_path / 'empty'
    empty.mkdir()
    refused('there are no pictures in', str(path), str(weights), images=[str(empty)])
    small = tmp_path / 'small'
    small.mkdir()
    (small / 'a.jpg').write_bytes(b'')
    refused('none of the first 1 pictures can be read', str(path), str(weights), images=[str(small)])
    narrow = {'model.backbone.embed_dims': 8}
    refused(r'patch_embed.projection.weight of SwinTransformer is \(8, 3', str(path), str(weights), options=narrow)
    sizes = {'test_dataloader.dataset.pipeline.1.scale': (12, 12), 'model.data_preprocessor.pad_size_divisor': 1}
    refused('pixels, less than a window of 16', str(path), str(weights), options=sizes)
    refused("timm has no model 'swin_huge'; it has swin", 'timm:swin_huge', str(weights))
    refused('is a config: give the checkpoint', str(path), None)
    refused('arch inline counts layers', str(path), str(weights), inline=(2, 1, 2, 1), kind=ValueError)
    resnet = {'model.backbone': dict(_delete_=True, type='ResNet', depth=18)}
    model = MODELS.build(dict(type='mmdet.ResNet', depth=18))
    other = tmp_path / 'resnet.pth'
    torch.save({f'backbone.{k}': v for k, v in model.state_dict().items()}, other)
    refused('mmdet.ResNet has no softmax attention', str(path), str(other), options=resnet)


@pytest.mark.slow
def test_the_report_compares_the_copy_and_the_linear_model_with_the_teacher(retinanet):
    folder, _, _, weights, (source, linear, written) = retinanet
    places = [str(next((folder / 'coco').glob('val*')))]
    files = report_run(source, linear, written, places, str(weights), sizes=((64, 64), (96, 60)), labels=True)
    found = json.loads(files[0].read_text())
    errors, blocks = found['errors'], linear.copy.attentions
    assert list(errors['copy']) == [*blocks, 'map 0', 'map 1', 'map 2', 'map 3']
    assert errors['copy'] != errors['linear']
    assert all(0 < error < 2 for row in errors.values() for error in row.values())
    assert set(found['cost']) == {'64 x 64', '96 x 60'}
    assert found['cost']['96 x 60']['linear']['seconds'] > 0
    assert set(found['metrics']) == {'teacher', 'copy', 'linear'}
    text = files[1].read_text()
    assert '| map 3 |' in text
    assert '## Metrics on labels' in text
    assert files[2].read_bytes().startswith(b'\x89PNG')


def box_sample(boxes, scores):
    boxes = torch.tensor(boxes, dtype=torch.float32).view(-1, 4)
    labels = torch.zeros(len(boxes), dtype=torch.long)
    return SimpleNamespace(pred_instances=dict(bboxes=boxes, labels=labels, scores=torch.tensor(scores)))


def test_agreement_is_measured_against_the_teacher():
    teacher = box_sample([[0, 0, 10, 10], [50, 50, 90, 90], [20, 20, 30, 30]], [0.9, 0.8, 0.1])
    half = box_sample([[0, 0, 10, 10], [0, 50, 9, 90]], [0.7, 0.6])
    assert agreement(DETECTION, [teacher], [teacher])['AP'] == pytest.approx(100)
    assert agreement(DETECTION, [teacher], [half])['AP50'] == pytest.approx(50.5, abs=1)
    assert agreement(DETECTION, [teacher], [box_sample([], [])]) == dict(AP=0.0, AP50=0.0)
    assert agreement(DETECTION, [box_sample([], [])], [teacher]) == {}
    maps = [
        SimpleNamespace(pred_sem_seg=SimpleNamespace(data=torch.tensor([row])))
        for row in ([[0, 0, 1, 1]], [[0, 1, 1, 1]])
    ]
    assert agreement(SEMANTIC_SEGMENTATION, maps[:1], maps[1:]) == dict(mIoU=pytest.approx(100 * (1 / 2 + 2 / 3) / 2))
    logits = [torch.tensor([0.0, 2.0]), torch.tensor([1.0, 0.0])]
    assert agreement(CLASSIFICATION, logits, [logits[0], logits[0]]) == dict(top1=50.0)


def weights_of(path):
    return read_state_dict(str(path))


def equal(first, second):
    first, second = weights_of(first), weights_of(second)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def other_teacher(folder, weights):
    """The same network with other numbers."""
    state = {name: value + 0.01 if value.is_floating_point() else value for name, value in weights_of(weights).items()}
    path = folder / 'other.pth'
    torch.save(dict(state_dict=state), path)
    return path


@pytest.mark.slow
def test_nothing_of_an_earlier_run_is_taken(tmp_path, capsys):
    _, path, weights = teacher(tmp_path)
    other, out = other_teacher(tmp_path, weights), tmp_path / 'out'
    options = dict(steps=dict(outputs=2, maps=2), batch_size=2, workers=0)
    linearize_run(str(path), str(weights), out, **options)
    before = {file: file.read_bytes() for file in out.rglob('*.p*') if file.is_file()}

    def refused(says, checkpoint=weights, **changed):
        with pytest.raises(ValueError, match=says):
            linearize_run(str(path), str(checkpoint), out, resume=True, **(options | changed))
        assert {file: file.read_bytes() for file in before} == before

    refused('holds another run: teacher is .* there and .* here. Resume with the values', other)
    refused('outputs: steps is 2 there and 3 here', steps=dict(outputs=3, maps=2))
    refused('maps: lr is 0.0005 there and 0.1 here', lr=dict(maps=0.1))
    refused('outputs: batch_size is 2 there and 1 here', batch_size=1)
    refused('seed is 0 there and 1 here', seed=1)
    refused(r'model.backbone.arch.inline is .* there and \[0, 1, 0, 0\] here', inline=(0, 1, 0, 0))
    pictures = tmp_path / 'pictures'
    pictures.mkdir()
    shutil.copy(next((tmp_path / 'coco').rglob('*.jpg')), pictures)
    refused('outputs: pictures is .8 files .* here', images=[str(pictures)])
    capsys.readouterr()
    linearize_run(str(path), str(weights), out, resume=True, **options)
    assert 'maps is finished' in capsys.readouterr().out
    assert equal(out / 'linear.pth', out / 'maps.pth')

    def killed(*_):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmsoft.distillation.linearizing._teach', killed)
        with pytest.raises(KeyboardInterrupt):
            linearize_run(str(path), str(other), out, **options)
    assert 'maps.pth' in capsys.readouterr().out
    gone = ['linear.pth', 'linear.py', 'outputs.pth', 'maps.pth']
    assert not [name for name in gone if (out / name).exists()]
    assert not [*out.rglob('iter_*.pth'), *out.rglob('last_checkpoint')]
    linearize_run(str(path), str(other), out, resume=True, **options)
    linearize_run(str(path), str(other), tmp_path / 'fresh', **options)
    assert equal(out / 'linear.pth', tmp_path / 'fresh' / 'linear.pth')
    (out / 'stages.json').unlink()
    for resume in (True, False):
        with pytest.raises(ValueError, match=r"holds 'outputs.pth', and no stages.json .* another --out, or remove it"):
            linearize_run(str(path), str(other), out, resume=resume, **options)
    assert (out / 'outputs.pth').is_file()


@pytest.mark.slow
def test_stages_one_at_a_time_make_what_all_make_at_once(tmp_path, capsys):
    _, path, weights = teacher(tmp_path)
    options = dict(steps=dict(outputs=2, maps=2), batch_size=2, workers=0)
    whole, apart, alone = (tmp_path / name for name in ('whole', 'apart', 'alone'))
    linearize_run(str(path), str(weights), whole, **options)
    linearize_run(str(path), str(weights), apart, stages=['outputs'], **options)
    assert equal(whole / 'outputs.pth', apart / 'linear.pth')
    capsys.readouterr()
    _, _, written = linearize_run(str(path), str(weights), apart, stages=['maps'], **options)
    assert f'maps starts from {apart / "outputs.pth"}' in capsys.readouterr().out
    assert written.keys() == {'copy', 'outputs', 'maps', 'linear'}
    assert equal(whole / 'linear.pth', apart / 'linear.pth')
    linearize_run(str(path), str(weights), alone, **(options | dict(steps=dict(outputs=0, maps=2))))
    assert f'maps starts from {alone / "copy.pth"}, for outputs of this teacher' in capsys.readouterr().out
    assert not (alone / 'outputs.pth').exists()
    assert not equal(whole / 'linear.pth', alone / 'linear.pth')
    with pytest.raises(ValueError, match=r"maps: starts_from is 'copy' there and 'outputs' here"):
        linearize_run(str(path), str(weights), alone, resume=True, **options)
    other = other_teacher(tmp_path, weights)
    linearize_run(str(path), str(other), apart, stages=['maps'], **options)
    said = capsys.readouterr().out
    assert f'maps starts from {apart / "copy.pth"}' in said
    assert 'outputs.pth' in said.partition('removed')[0]
    assert not (apart / 'outputs.pth').exists()


@pytest.mark.slow
def test_frozen_stages_are_taught_and_stay_in_the_config(tmp_path):
    _, path, weights = teacher(tmp_path)
    frozen = {'model.backbone.frozen_stages': 2}
    options = dict(OPTIONS, options=frozen, inline=(1, 1, 1, 0))
    _, linear, written = linearize_run(str(path), str(weights), tmp_path / 'out', **options)
    assert linear.copy.attentions[0] == 'stages.0.blocks.0'
    before, outputs, after = (weights_of(written[stage]) for stage in ('copy', 'outputs', 'maps'))
    attention = 'backbone.stages.0.blocks.0.attn.proj.weight'
    assert not torch.equal(before[attention], outputs[attention])
    embedding = 'backbone.stages.0.embed.proj.weight'
    assert torch.equal(before[embedding], outputs[embedding])
    assert not torch.equal(outputs[embedding], after[embedding])
    assert Config.fromfile(tmp_path / 'out' / 'linear.py').model.backbone.frozen_stages == 2


@pytest.mark.slow
def test_batch_norms_keep_their_statistics(tmp_path):
    """SOFT's frame has them: a run that learns nothing changes nothing."""
    cfg = small_config('retinanet', tmp_path)
    cfg.model.backbone = dict(type='mmsoft.SOFT', arch=MINI, attn='softmax')
    cfg.model.neck.in_channels = list(MINI['dims'])
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.train()
    model.backbone(torch.randn(2, 3, 64, 64))  # statistics of some pictures
    weights, out = tmp_path / 'teacher.pth', tmp_path / 'out'
    torch.save(dict(state_dict=model.state_dict()), weights)
    still = dict(OPTIONS, lr=dict(outputs=1e-12, maps=1e-12))
    _, _, written = linearize_run(str(dump(cfg, tmp_path)), str(weights), out, attention='linear', **still)
    before, after = (weights_of(written[stage]) for stage in ('copy', 'maps'))
    statistics = [name for name in before if 'running' in name and name.startswith('backbone.')]
    assert statistics
    assert all(torch.equal(before[name], after[name]) for name in statistics)
    first, *_ = losses(out / 'maps')
    assert first < 1e-6, 'the student normalises as the teacher does'


def test_a_run_never_writes_over_what_it_did_not_make(tmp_path):
    _, path, weights = teacher(tmp_path)
    before = weights.read_bytes()
    with pytest.raises(ValueError, match=r"small.py' lies in --out .* name another --out"):
        linearize_run(str(path), str(weights), tmp_path, stages=())
    other = tmp_path / 'others'
    other.mkdir()
    shutil.copy(weights, other / 'linear.pth')
    with pytest.raises(ValueError, match=r"holds 'linear.pth', and no stages.json"):
        linearize_run(str(path), str(weights), other, stages=())
    assert weights.read_bytes() == before == (other / 'linear.pth').read_bytes()
    with pytest.raises(ValueError, match='is a file: name a folder'):
        linearize_run(str(path), str(weights), weights, stages=())
    with pytest.raises(ValueError, match=r'gets pictures itself: name a folder elsewhere'):
        linearize_run(str(path), str(weights), tmp_path / 'coco/out', images=[str(tmp_path / 'coco')])


def test_pictures_of_val_among_those_to_learn_from_are_told_of(tmp_path, capsys):
    cfg, _, weights = teacher(tmp_path)
    for part in ('train', 'val', 'test'):
        cfg[f'{part}_dataloader'].dataset.data_prefix = dict(img='')
    options = dict(OPTIONS, steps=dict(outputs=0, maps=1))
    linearize_run(str(dump(cfg, tmp_path)), str(weights), tmp_path / 'out', **options)
    assert 'note: 12 of the 12 pictures to learn from lie where those of val or test do' in capsys.readouterr().out


def test_how_pictures_are_prepared_where_no_config_says_it(tmp_path):
    """By the library, or by the windows of the authors' file; --cfg-options may say otherwise."""
    model, file = torchvision.models.swin_t(num_classes=5), tmp_path / 'swin.pth'
    torch.save(model.state_dict(), file)

    def prepared(*source, **options):
        cfg = copy_model(open_source(*source, **options), None, 'inline').cfg
        return cfg.test_dataloader.dataset.transform

    found = prepared('torchvision:swin_t', str(file))
    assert int(found.input_size / found.crop_pct) == 232
    assert (found.input_size, found.interpolation) == (224, 'bicubic')
    for window, size, crop in ((7, 224, 0.875), (12, 384, 1.0)):
        options = dict(arch=dict(dims=(32, 64, 128, 256), heads=(1, 2, 4, 8), depths=(1, 1, 1, 1), inline=(0, 0, 0, 0)))
        own = InLineSwinClassifier(**options, window_size=window, num_classes=5)
        weights = FAMILIES['InLine-Swin'].to_published(own.state_dict())
        torch.save(weights, file)
        found = prepared(str(file), None)
        assert (found.input_size, found.crop_pct) == (size, crop)
    found = prepared(str(file), None, options={'test_dataloader.dataset.transform.input_size': 320})
    assert found.input_size == 320
    with pytest.raises(TeacherError, match=r"--cfg-options model.backbone.window_size: the model is the teacher's"):
        prepared(str(file), None, options={'model.backbone.window_size': 8})
    with pytest.raises(TeacherError, match='--demo is for a config'):
        prepared(str(file), None, demo=True)
    with pytest.raises(TeacherError, match='give one alone'):
        prepared(str(file), str(file))
    torch.save({name: value for name, value in weights.items() if 'head' not in name}, file)
    with pytest.raises(TeacherError, match='has no head'):
        prepared(str(file), None)


def test_numbers_and_wishes_are_checked_before_anything_is_written(tmp_path, monkeypatch):
    _, path, weights = teacher(tmp_path)
    out = tmp_path / 'out'

    def refused(says, kind=ValueError, **options):
        with pytest.raises(kind, match=says):
            linearize_run(str(path), str(weights), out, **(OPTIONS | options))
        assert not out.exists()

    refused('--steps are iterations .* got -1', steps=dict(outputs=-1, maps=5))
    refused('--lr are numbers above 0.* got -1', lr=dict(outputs=-1.0, maps=1.0))
    refused('--lr are numbers above 0.* got nan', lr=dict(maps=float('nan')))
    refused('--batch-size is 1 or more pictures; got 0', batch_size=0)
    refused('--workers is 0 or more .* got -1', workers=-1)
    refused('--save-every takes a time', save_every='soon')
    asked = dict(asked=None, images=None, labels=False)
    refused('no pictures in .*give --report-images a', check=partial(check_report, **asked | dict(asked=['nowhere'])))
    labels = partial(check_report, **asked | dict(labels=True))
    unlabelled = {'test_dataloader.dataset.ann_file': 'annotations/nowhere.json'}
    refused(r'there is no .*nowhere\.json', check=labels, options=unlabelled, kind=DataError)
    refused('with a labelled test set', check=labels, options={'test_evaluator.format_only': True})
    model = timm.create_model('vit_tiny_patch16_224', num_classes=6)
    torch.save(model.state_dict(), tmp_path / 'vit.pth')
    pictures = [str(tmp_path / 'coco')]
    name = 'timm:vit_tiny_patch16_224'
    check = partial(check_report, asked=None, images=pictures, labels=True)
    with pytest.raises(TeacherError, match='--labels asks for a config with a labelled test set'):
        linearize_run(name, str(tmp_path / 'vit.pth'), out, images=pictures, check=check)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TeacherError, match=rf"'{name}' brings no pictures to learn from: .* --images"):
        linearize_run(name, str(tmp_path / 'vit.pth'), out)
    with pytest.raises(TeacherError, match=r"library 'tim'; .* are timm:<name> and torchvision:<name>"):
        linearize_run('tim:swin_tiny', None, out)
    torch.save(dict(fc=torch.zeros(2)), tmp_path / 'resnet.pth')
    with pytest.raises(CheckpointError, match='give the checkpoint that this model was trained to'):
        linearize_run(str(path), str(tmp_path / 'resnet.pth'), out)
    assert not out.exists()
    wishes = ('--no-report', '--labels')
    result = run('linearize', path, weights, '--out', out, *wishes, check=False)
    assert result.returncode == 2
    assert 'leave them out, or --no-report' in result.stderr


def test_the_linear_config_works_from_any_folder(tmp_path, monkeypatch):
    _, path, weights = teacher(tmp_path)
    monkeypatch.chdir(tmp_path)
    linearize_run(str(path), str(weights), 'out', stages=())
    monkeypatch.chdir('/')
    assert Config.fromfile(tmp_path / 'out' / 'linear.py').load_from == str(tmp_path / 'out' / 'linear.pth')


def test_no_picture_may_be_prepared_to_less_than_a_window(tmp_path):
    cfg, _, _ = teacher(tmp_path)
    folder = tmp_path / 'pictures'
    folder.mkdir()
    for index in range(30):
        Image.new('RGB', (96, 64)).save(folder / f'{index:02}.jpg')
    Image.new('RGB', (900, 12)).save(folder / '99.png')
    scale = cfg.test_dataloader.dataset.pipeline[1]
    scale.update(type='Resize', scale=(96, 64), keep_ratio=True)
    with pytest.raises(TeacherError, match=r"99.png' is prepared to 1 x 96 pixels, less than a window of 16"):
        check_pictures(cfg, find_pictures([str(folder)]), 16)
    (folder / '99.png').unlink()
    (folder / '00.jpg').write_bytes(b'no picture')
    check_pictures(cfg, find_pictures([str(folder)]), 16)


def test_the_report_prefers_pictures_that_were_not_learned_from(tmp_path):
    _, path, weights = teacher(tmp_path)
    source = open_source(str(path), str(weights))
    train, val = (str(next((tmp_path / 'coco').glob(f'{part}*')).resolve()) for part in ('train', 'val'))
    places, where = report_places(source, source.cfg, None)
    assert places == find_pictures([val])
    assert 'not learned from' in where
    assert report_places(source, source.cfg, [train])[0] == find_pictures([val])
    places, where = report_places(source, source.cfg, [str(tmp_path / 'coco')])
    assert places == [str(tmp_path / 'coco')]
    assert 'among those to learn from' in where
    said = _summary({}, dict(copy={'map 0': 0.2}, linear={'map 0': 0.1}))
    assert 'no detection of the teacher has a score of 0.3' in said
