"""A classifier that learns of a teacher's, or its own average's, predictions as well as of labels."""

import copy
import shutil

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config

import mmsoft.registry  # noqa: F401
from mmsoft.checkpoints import CheckpointError
from mmsoft.datasets.class_folders import ClassSample
from mmsoft.engine.predictor import Predictor
from mmsoft.engine.taught import Mesa
from mmsoft.engine.training import evaluate, train


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
    torch.manual_seed(0)
    model = timm.create_model('resnet10t', num_classes=6).eval()
    file = tmp_path_factory.mktemp('teacher') / 'resnet.pth'
    torch.save(model.state_dict(), file)
    return model, dict(source='timm:resnet10t', checkpoint=str(file))


def build(folder, mesa=None, **teacher):
    cfg = small_config('classifier', folder)
    init_default_scope(cfg.default_scope)
    cfg.model.backbone.drop_path_rate = 0.0
    cfg.model.mixup = None
    torch.manual_seed(1)
    return MODELS.build(dict(cfg.model, teacher=teacher or None, mesa=mesa))


def test_losses_are_those_of_the_definition(teacher, tmp_path):
    model, options = teacher
    images = torch.randn(4, 3, 64, 64)
    samples = [ClassSample(gt_label=label) for label in (0, 3, 5, 1)]
    plain = build(tmp_path)
    logits, labels = plain.backbone(images), plain(images, samples, 'loss')['loss']
    wanted = model(images)
    hard = build(tmp_path, **options, weight=0.25)
    assert hard.state_dict().keys() == plain.state_dict().keys()
    expected = 0.75 * labels + 0.25 * F.cross_entropy(logits, wanted.argmax(1))
    assert hard(images, samples, 'loss')['loss'].item() == pytest.approx(expected.item(), rel=1e-5)
    soft = build(tmp_path, **options, kind='soft', weight=1.0, temperature=3.0)
    p = (wanted / 3).softmax(1)
    expected = 9 * (p * (p.log() - (logits / 3).log_softmax(1))).sum(1).mean()
    loss = soft(images, samples, 'loss')['loss']
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    loss.backward()
    assert all(parameter.grad is None for parameter in soft.teacher.model.parameters())
    assert copy.deepcopy(soft).teacher is soft.teacher
    assert soft.double().teacher.model.fc.weight.dtype == torch.float64


def test_the_last_map_of_a_teacher_is_matched(teacher, tmp_path):
    images, samples = torch.randn(2, 3, 64, 64), [ClassSample(gt_label=label) for label in (4, 1)]
    cfg = small_config('classifier', tmp_path)
    cfg.dump(tmp_path / 'master.py')
    pupil = build(tmp_path)
    torch.manual_seed(2)
    master = MODELS.build(cfg.model.backbone).eval()
    torch.save({f'backbone.{name}': value for name, value in master.state_dict().items()}, tmp_path / 'master.pth')
    options = dict(source=str(tmp_path / 'master.py'), checkpoint=str(tmp_path / 'master.pth'), kind='soft')
    without = build(tmp_path, **options)(images, samples, 'loss')['loss']
    matched = build(tmp_path, **options, maps=3.0)
    loss = matched(images, samples, 'loss')['loss']
    own, wanted = (model.forward_features(images) for model in (pupil.backbone, master))
    error = (own - wanted).square().sum() / wanted.square().sum()
    assert loss.item() == pytest.approx((without + 3 * error).item(), rel=1e-4)
    loss.backward()
    assert all(parameter.grad is None for parameter in matched.teacher.model.parameters())
    other = build(tmp_path, **teacher[1], maps=1.0)
    with pytest.raises(ValueError, match=r"the teacher's are \(2, \d+, 2\), the pupil's \(2, 5, \d+\); give"):
        other(images, samples, 'loss')
    torch.save(torchvision.models.resnet18(num_classes=6).state_dict(), tmp_path / 'resnet.pth')
    with pytest.raises(ValueError, match="a teacher of timm or of ours; got 'torchvision:resnet18'"):
        build(tmp_path, source='torchvision:resnet18', checkpoint=str(tmp_path / 'resnet.pth'), maps=1.0)


def test_teachers_that_cannot_teach_are_told_of(teacher, tmp_path):
    _, options = teacher
    with pytest.raises(ValueError, match='maps at least 0'):
        build(tmp_path, **options, maps=-1.0)
    with pytest.raises(ValueError, match=r'kind must be one of soft, hard|kind'):
        build(tmp_path, **options, kind='warm')
    with pytest.raises(ValueError, match='weight must be above 0'):
        build(tmp_path, **options, weight=0.0)
    with pytest.raises(ValueError, match='has no effect'):
        build(tmp_path, **options, temperature=2.0)
    other = tmp_path / 'other.pth'
    torch.save(timm.create_model('resnet10t', num_classes=9).state_dict(), other)
    model = build(tmp_path, source='timm:resnet10t', checkpoint=str(other))
    with pytest.raises(ValueError, match=r'gives \(1, 9\) logits, the pupil \(1, 6\)'):
        model(torch.randn(1, 3, 64, 64), [ClassSample(gt_label=0)], 'loss')


def test_a_teacher_is_built_when_it_teaches(tmp_path):
    """Tests and predictions need none: neither its file nor its library's hub."""
    gone = dict(source='timm:resnet10t', checkpoint=str(tmp_path / 'gone.pth'))
    model = build(tmp_path, **gone).eval()
    assert model(torch.randn(1, 3, 64, 64)).shape == (1, 6)
    assert model.double().half().float().teacher.built is None
    with pytest.raises(CheckpointError, match=r'gone\.pth. does not exist'):
        model(torch.randn(1, 3, 64, 64), [ClassSample(gt_label=0)], 'loss')
    cfg = small_config('classifier', tmp_path)
    cfg.model.teacher = gone
    with pytest.raises(CheckpointError, match=r'gone\.pth. does not exist'):
        train(cfg, work_dir=str(tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


def test_the_teacher_leaves_random_numbers_alone(teacher, tmp_path):
    model = build(tmp_path, **teacher[1])
    before = torch.get_rng_state()
    assert not any(parameter.requires_grad for parameter in model.teacher.model.parameters())
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.teacher.model.training


@pytest.mark.slow
def test_a_run_needs_its_teacher_and_its_checkpoint_does_not(teacher, tmp_path):
    file = tmp_path / 'teacher.pth'
    shutil.copy(teacher[1]['checkpoint'], file)
    cfg = small_config('classifier', tmp_path, train=4, epochs=1)
    cfg.model.teacher = dict(source='timm:resnet10t', checkpoint=str(file), kind='soft')
    runner = train(copy.deepcopy(cfg), work_dir=str(tmp_path / 'run'))
    assert runner.model.teacher.built is not None
    file.unlink()
    checkpoint = str(tmp_path / 'run/epoch_1.pth')
    picture = next((tmp_path).rglob('*.JPEG'), None) or next(tmp_path.rglob('*.jpg'))
    assert Predictor(checkpoint, device='cpu')(picture) is not None
    assert 'accuracy/top1' in evaluate(cfg, checkpoint, work_dir=str(tmp_path / 'test'))


def test_the_options_of_a_teacher_are_checked(tmp_path):
    cfg = small_config('classifier', tmp_path)
    init_default_scope(cfg.default_scope)
    found = MODELS.build(dict(cfg.model, teacher='timm:resnet10t')).teacher
    assert (found.source, found.kind) == ('timm:resnet10t', 'hard')
    wrong = {
        "no option 'knd'. Did you mean 'kind'. Its options are source, checkpoint, kind": dict(source='timm:x', knd=1),
        'model.teacher has no source: set model.teacher.source=timm:<name>': dict(kind='soft'),
        r'is a source \(timm:<name>, .* got 3': 3,
    }
    for says, options in wrong.items():
        with pytest.raises((TypeError, ValueError), match=says):
            MODELS.build(dict(cfg.model, teacher=options))
    detector = small_config('retinanet', tmp_path)
    detector.model.teacher = dict(kind='soft')
    with pytest.raises(ValueError, match='is an option of classifiers; RetinaNet has none: leave it out'):
        train(detector, work_dir=str(tmp_path / 'run'))
    assert not (tmp_path / 'run').exists()


def test_mesa_is_the_cross_entropy_against_the_average(tmp_path):
    images = torch.randn(4, 3, 64, 64)
    samples = [ClassSample(gt_label=label) for label in (0, 3, 5, 1)]
    model = build(tmp_path, mesa=dict(weight=1.5)).eval()
    labels = build(tmp_path).eval()(images, samples, 'loss')['loss']
    with pytest.raises(ValueError, match=r"nobody keeps: add dict\(type='mmsoft.AverageWeights'\)"):
        model(images, samples, 'loss')
    average = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in average.parameters():
            parameter.mul_(1.1)
    model.mesa.average = average
    assert model(images, samples, 'loss')['loss'] == labels
    model.mesa.active = True
    wanted, own = average.backbone(images).softmax(1), model.backbone(images).log_softmax(1)
    loss = model(images, samples, 'loss')['loss']
    assert loss.item() == pytest.approx((labels - 1.5 * (wanted * own).sum(1).mean()).item(), rel=1e-5)
    loss.backward()
    assert all(parameter.grad is None for parameter in average.parameters())
    assert model.state_dict().keys() == average.state_dict().keys()
    for wrong in (dict(weight=0), dict(begin=1)):
        with pytest.raises(ValueError, match='mesa: weight must be above 0, begin at least 0 and below 1'):
            build(tmp_path, mesa=wrong)


@pytest.mark.slow
def test_mesa_begins_with_its_epoch(tmp_path, monkeypatch):
    """In a run, against the average that the run keeps."""
    cfg = small_config('classifier', tmp_path, train=4, epochs=4)
    cfg.model.mesa = dict(weight=2.0, begin=0.5)
    added, add = [], Mesa.add

    def watched(self, loss, logits, images):
        found = add(self, loss, logits, images)
        added.append((found - loss).item())
        assert not self.average.training
        return found

    monkeypatch.setattr(Mesa, 'add', watched)
    runner = train(cfg, work_dir=str(tmp_path / 'run'))
    half = runner.max_iters // 2
    assert added[:half] == [0.0] * half
    assert len(added) == 2 * half
    assert min(added[half:]) > 1  # about 2 log 6, that of models which know nothing
    (average,) = [hook.average.module for hook in runner.hooks if hasattr(hook, 'average')]
    assert runner.model.mesa.average is average
