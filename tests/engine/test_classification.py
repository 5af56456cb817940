"""Classifiers: class folders in every form, the recipe's parts, training, testing and tuning with the real tools."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from helpers import MINI
from mmengine.config import Config
from mmengine.registry import DATASETS
from PIL import Image
from safetensors.torch import save_file
from small_runs import dump, run, small_config
from small_worlds import check
from timm.models import save_for_hf

import mmsoft.timm
from mmsoft.checkpoints import read_checkpoint
from mmsoft.datasets.class_folders import ClassFolders, ClassSample, make_transform
from mmsoft.datasets.layout import DataError
from mmsoft.datasets.miniature import write_world
from mmsoft.datasets.reading import read_faults
from mmsoft.datasets.seeding import SeededDataset, SeededIndex
from mmsoft.engine.classification import ImageClassifier, TopAccuracy
from mmsoft.engine.config import check_sizes, load_config, set_img_size
from mmsoft.engine.predict import predict
from mmsoft.engine.training import evaluate, size_table, train
from mmsoft.models import SOFT

TRAIN = dict(input_size=64, is_training=True, auto_augment='rand-m9-mstd0.5-inc1', re_prob=0.5, interpolation='random')
TEST = dict(input_size=64, crop_pct=0.875)
NAMES = ('banana', 'book', 'frisbee', 'kite', 'scissors', 'teddy_bear')


@pytest.fixture(scope='module')
def world(tmp_path_factory):
    return write_world('imagenet', tmp_path_factory.mktemp('classes'), train=12, val=8, size=(128, 160))


@pytest.fixture
def own(world, tmp_path):
    return Path(shutil.copytree(world, tmp_path / 'own'))


def config(root, split='val', **options):
    return dict(type='mmsoft.ClassFolders', data_root=str(root), split=split, transform=TEST, **options)


def build(root, split='val', **options):
    return DATASETS.build(config(root, split, **options))


def flatten(root):
    """The validation set in one folder; the names of the classes in the order of the pictures' names."""
    labels = {}
    for path in sorted((root / 'val').glob('*/*.jpg')):
        labels[f'ILSVRC2012_val_{len(labels):08d}.JPEG'] = path.parent.name
        path.rename(root / 'val' / f'ILSVRC2012_val_{len(labels) - 1:08d}.JPEG')
    for folder in [path for path in (root / 'val').iterdir() if path.is_dir()]:
        folder.rmdir()
    return labels


def test_folders_are_classes_in_order(world, own):
    dataset = build(world, 'train')
    assert dataset.metainfo['classes'] == NAMES
    for path, label in dataset.samples:
        assert Path(path).parent.name == NAMES[label]
    sample = dataset[0]
    assert sample['inputs'].shape == (3, 64, 64)
    assert sample['data_samples'].gt_label == 0
    picture = dataset.to_picture(sample['inputs'])
    assert picture.dtype == np.uint8
    assert 30 < picture.mean() < 220
    # a part of the classes in the validation set keeps its numbers
    shutil.rmtree(own / 'val' / 'banana')
    assert {label for _, label in build(own).samples} == {1, 2, 3, 4, 5}
    assert check(config(own)) == [f'{own}/val has no pictures of 1 of the 6 classes']


def test_augmentations_follow_the_seed_of_the_index(world):
    dataset = SeededDataset(config(world, 'train') | dict(transform=TRAIN))
    first, again, other = (dataset[SeededIndex(3, seed)]['inputs'] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize('form', ['names', 'numbers', 'csv', 'in order', 'challenge'])
def test_the_flat_validation_set_has_its_labels_in_a_file(own, form):
    expected = {Path(path).name: label for path, label in build(own).samples}
    assert len(expected) > 10
    labels = flatten(own)
    (own / 'devkit').mkdir()
    path = own / 'devkit' / 'labels.txt'
    if form == 'names':
        lines = [f'{name} {label}' for name, label in reversed(labels.items())]
    elif form == 'numbers':
        lines = [f'val/{name} {NAMES.index(label)}' for name, label in labels.items()]
    elif form == 'csv':
        lines = ['ImageId,PredictionString', *(f'{n[:-5]},{label} 1 2 3 4' for n, label in labels.items())]
    elif form == 'in order':
        lines = labels.values()
    else:
        from scipy.io import savemat

        path = own / 'devkit' / 'ILSVRC2012_validation_ground_truth.txt'
        order = sorted(NAMES, reverse=True)
        lines = [str(order.index(label) + 1) for label in labels.values()]
        path.write_text('\n'.join(lines))
        with pytest.raises(DataError, match=r'those of the challenge, which only its meta\.mat explains'):
            check(config(own, labels=f'devkit/{path.name}'))
        synsets = np.array(
            [(i + 1, name) for i, name in enumerate(order)], dtype=[('ILSVRC2012_ID', 'O'), ('WNID', 'O')]
        )
        savemat(own / 'devkit' / 'meta.mat', dict(synsets=synsets))
    path.write_text('\n'.join(lines) + '\n')
    found = build(own, labels=f'devkit/{path.name}')
    assert {Path(p).name: NAMES[label] for p, label in found.samples} == labels
    assert check(config(own, labels=f'devkit/{path.name}')) == []


def test_data_that_is_incomplete_is_named(own):
    with pytest.raises(DataError, match=r"no folder '.*nowhere/val'(.|\n)*imagenet/(.|\n)*--demo"):
        check(config(own / 'nowhere'))
    (own / 'val' / 'unicorn').mkdir()
    with pytest.raises(DataError, match=r"folders that are not among the 6 classes, such as 'unicorn'"):
        check(config(own))
    (own / 'val' / 'unicorn').rmdir()
    for path in (own / 'train' / 'kite').iterdir():
        path.unlink()
    with pytest.raises(DataError, match=r"1 class folders of '.*/train' hold no pictures, such as 'kite'"):
        check(config(own, 'train'))
    labels = flatten(own)
    with pytest.raises(DataError, match=r'holds pictures, not class folders: name the file of their labels'):
        check(config(own))
    with pytest.raises(DataError, match=r"no file of labels '.*none\.txt'"):
        check(config(own, labels='none.txt'))
    lines = [f'{name} {label}' for name, label in labels.items()]
    for text, message in (
        ('\n'.join(lines[:-1]), 'has no label for 1 pictures'),
        ('\n'.join([*lines[:-1], f'{list(labels)[-1]} unicorn']), "the label 'unicorn' is not one of the 6"),
        ('\n'.join(['image label', *lines]), r"pictures that are not in .*, such as 'image'"),
        ('\n'.join([*lines, lines[0]]), 'labels of some pictures twice'),
        ('\n'.join([*lines[:-1], f'{lines[-1]} 5']), r'line \d+: expected "name label"'),
        ('\n'.join([*lines[:-1], 'kite']), 'lines of two forms'),
        ('kite\n', rf'has 1 labels, but .* has {len(labels)} pictures'),
        ('', 'has no labels'),
    ):
        (own / 'labels.txt').write_text(text)
        with pytest.raises(DataError, match=message):
            check(config(own, labels='labels.txt'))


def test_numbers_are_never_taken_for_names(own):
    """Class folders that are called 1, 2, ..., and labels counted from 0."""
    labels = flatten(own)
    for number, name in enumerate(NAMES, start=1):
        (own / 'train' / name).rename(own / 'train' / str(number))
    for shift, message in ((0, None), (1, None)):
        lines = [f'{name} {NAMES.index(label) + shift}' for name, label in labels.items()]
        (own / 'labels.txt').write_text('\n'.join(lines))
        found = build(own, labels='labels.txt')
        assert [label for _, label in found.samples] == [NAMES.index(label) for label in labels.values()], message
    (own / 'labels.txt').write_text('\n'.join(f'{name} 3' for name in labels))
    with pytest.raises(DataError, match=r'its labels are names of classes and, counted from 0, numbers of others'):
        check(config(own, labels='labels.txt'))


def test_the_recipes_transform_takes_every_picture(world):
    """Pillow refuses what timm's posterize asks for at its strongest."""
    cfg = load_config(mmsoft.config_path('soft_pp_tiny_300e_in1k'))
    transform = make_transform(dict(cfg.train_dataloader.dataset.transform, input_size=32))
    picture = Image.new('RGB', (40, 40), (200, 100, 50))
    for _ in range(2000):
        assert transform(picture).shape == (3, 32, 32)
    with pytest.raises(ValueError, match="transform has no option 're_probb'; timm's create_transform has input_size"):
        make_transform(dict(TEST, re_probb=0.3))
    with pytest.raises(ValueError, match='timm makes no transform of'):
        make_transform(dict(TRAIN, auto_augment='rnd-m9'))


def test_a_broken_picture_is_replaced_in_training_and_a_miss_in_evaluation(own):
    broken = build(own, 'train').samples[0][0]
    Path(broken).write_bytes(Path(broken).read_bytes()[:40])
    training = ClassFolders(str(own), 'train', TRAIN, record=str(own / 'faults.jsonl'))
    assert training[0]['data_samples'].img_path != broken
    assert list(read_faults(own / 'faults.jsonl')) == [broken]
    assert ClassFolders(str(own), 'train', TEST)[0]['data_samples'].gt_label == -1
    for path, _ in training.samples:
        Path(path).write_bytes(b'nothing')
    with pytest.raises(RuntimeError, match='failed 100 times in a row'):
        training[0]


def test_accuracy_by_hand():
    metric = TopAccuracy(topk=(1, 2))
    scores = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.4, 0.35, 0.25], [0.2, 0.3, 0.5]])
    metric.process(None, [dict(pred_scores=s, gt_label=g) for s, g in zip(scores, (0, 1, 2, -1), strict=True)])
    assert metric.evaluate(4) == {'accuracy/top1': 25.0, 'accuracy/top2': 50.0}


def test_mixing_and_smoothing_are_in_the_loss():
    backbone = dict(type='mmsoft.SOFTClassifier', arch=MINI, num_classes=6, img_size=64)
    images, samples = torch.randn(4, 3, 64, 64), [ClassSample(gt_label=i) for i in range(4)]
    model = ImageClassifier(backbone, smoothing=0.1).eval()
    logits = model(images)
    expected = torch.nn.functional.cross_entropy(logits, torch.arange(4), label_smoothing=0.1)
    assert torch.allclose(model(images, samples, 'loss')['loss'], expected, atol=1e-6)
    mixed = ImageClassifier(backbone, mixup=dict(mixup_alpha=0.8, cutmix_alpha=1.0))
    mixed.load_state_dict(model.state_dict())
    original = images.clone()
    mixed.eval()(images, samples, 'loss')['loss'].backward()
    assert not torch.equal(images, original)  # timm mixes in place
    with pytest.raises(ValueError, match=r'train_dataloader\.batch_size must be even; got a batch of 3'):
        mixed(images[:3], samples[:3], 'loss')
    predicted = model(original, samples, 'predict')
    assert torch.allclose(predicted[2].pred_scores, logits[2].softmax(0))


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A narrow classifier after a real training of some epochs, without mixing."""
    folder = tmp_path_factory.mktemp('trained')
    cfg = small_config('classifier', folder / 'data', train=60, batch=16, epochs=8)
    cfg.model.update(mixup=None)
    cfg.model.backbone.drop_path_rate = 0.0
    cfg.train_dataloader.dataset.transform = dict(input_size=64, is_training=True, scale=(0.6, 1.0), color_jitter=0.0)
    cfg.auto_scale_lr.enable = False
    cfg.optim_wrapper.optimizer.lr = 2e-3
    cfg.custom_hooks[0].warmup_epochs = 1
    path = dump(cfg, folder)
    run('train', path, '--work-dir', folder / 'run')
    return path, folder / 'run'


@pytest.mark.slow
def test_training_helps_and_is_logged(trained, tmp_path):
    path, folder = trained
    (log,) = folder.glob('*/vis_data/scalars.json')
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [entry for entry in entries if 'images_per_s' in entry]
    accuracy = [entry['accuracy/top1'] for entry in entries if 'accuracy/top1' in entry]
    assert accuracy[-1] > 60  # of six classes
    rates = [entry['lr'] for entry in steps]
    peak = rates.index(max(rates))
    assert rates[0] == pytest.approx(1e-6)
    assert max(rates) == pytest.approx(2e-3, rel=0.05)
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] == pytest.approx(5e-5, rel=0.2)
    # the average is what was validated and is what gets tested; it is not the last weights
    checkpoint = read_checkpoint(folder / 'epoch_8.pth')
    name = 'backbone.head.weight'
    assert not torch.equal(checkpoint['state_dict'][name], checkpoint['state_dict_ema'][name])
    tested = evaluate(load_config(path), str(folder / 'epoch_8.pth'), work_dir=str(tmp_path))
    assert tested['accuracy/top1'] == pytest.approx(accuracy[-1], abs=1e-4)
    # and what a backbone starts from
    backbone = SOFT(MINI, init_cfg=dict(type='Pretrained', checkpoint=str(folder / 'epoch_8.pth')))
    backbone.init_weights()
    name = 'stages.1.blocks.0.attn.q.weight'
    assert torch.equal(backbone.state_dict()[name], checkpoint['state_dict_ema'][f'backbone.{name}'])


@pytest.mark.slow
def test_several_sizes_in_one_call(trained, tmp_path):
    path, folder = trained
    done = run('test', path, folder / 'epoch_8.pth', '--work-dir', tmp_path, '--sizes', 64, 96)
    assert '| top-1, % | 64 | 96 |\n|---|---|---|\n| epoch_8.pth | ' in done.stdout
    metrics = json.loads((tmp_path / 'metrics.json').read_text())['metrics']
    assert set(metrics) == {'64', '96'}
    assert size_table({'epoch_8.pth': metrics}) in done.stdout
    assert metrics['64']['accuracy/top1'] > 60
    with pytest.raises(ValueError, match=r'--sizes gives a table; for --out and --show-dir test one size'):
        evaluate(load_config(path), 'x.pth', work_dir=str(tmp_path), sizes=[64], drawings='x')
    with pytest.raises(ValueError, match=r'sides of at least 32; got 16'):
        set_img_size(load_config(path), 16)
    with pytest.raises(ValueError, match=r'--sizes: for classifiers only'):
        check_sizes(load_config(mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco')), [64])


@pytest.mark.slow
def test_the_authors_files_and_bare_ones_are_tested_as_they_are(trained, tmp_path):
    path, folder = trained
    own = mmsoft.checkpoints.load(folder / 'epoch_8.pth')
    bare = {name.removeprefix('backbone.'): value for name, value in own.items()}
    save_file(bare, tmp_path / 'bare.safetensors')
    mmsoft.checkpoints.convert(tmp_path / 'bare.safetensors', tmp_path / 'theirs.pth')
    expected = evaluate(load_config(path), str(folder / 'epoch_8.pth'), work_dir=str(tmp_path / 'a'))
    for name in ('bare.safetensors', 'theirs.pth'):
        assert evaluate(load_config(path), str(tmp_path / name), work_dir=str(tmp_path / name[:4])) == expected
    pictures = sorted(Path(load_config(path).data_root, 'val', 'kite').iterdir())[:2]
    predict(load_config(path), str(tmp_path / 'theirs.pth'), list(map(str, pictures)), tmp_path / 'found')
    results = json.loads((tmp_path / 'found' / 'results.json').read_text())
    assert [entry['file_name'] for entry in results] == [picture.name for picture in pictures]
    for entry in results:
        assert set(entry['classes']) < set(NAMES)
        assert len(entry['classes']) == 5
        assert entry['scores'] == sorted(entry['scores'], reverse=True)
    assert len(list((tmp_path / 'found' / 'drawn').iterdir())) == 2


@pytest.mark.slow
@pytest.mark.parametrize('how', ['fine-tune', 'linear-probe'])
def test_other_classes_and_sizes_start_from_a_checkpoint(trained, tmp_path, how):
    """With the hooks as shipped; the metrics are those of the average, which a short run must not make useless."""
    path, folder = trained
    own = Path(shutil.copytree(load_config(path).data_root, tmp_path / 'four'))
    for name in ('kite', 'book'):
        for split in ('train', 'val'):
            shutil.rmtree(own / split / name)
    broken = next((own / 'val' / 'banana').iterdir())
    broken.write_bytes(b'nothing')
    cfg = load_config(path, dict(data_root=f'{own}/'))
    cfg.train_cfg.update(max_epochs=6, val_interval=6)
    cfg.custom_hooks = Config.fromfile(mmsoft.config_path('soft_pp_tiny_300e_in1k')).custom_hooks
    options = f'--{how}', folder / 'epoch_8.pth', '--img-size', 96
    done = run('train', dump(cfg, tmp_path, 'four'), *options, '--work-dir', tmp_path / how)
    assert 'fresh             2  kept at their random start' in done.stdout
    assert 'resized           4' in done.stdout
    (scalars,) = (tmp_path / how).glob('*/vis_data/scalars.json')
    entries = [json.loads(line) for line in scalars.read_text().splitlines()]
    accuracy = entries[-1]['accuracy/top1']
    assert accuracy > 50  # of four classes
    rates = [entry['lr'] for entry in entries if 'lr' in entry]
    assert min(rates[len(rates) // 2 :]) < 0.1 * max(rates)
    before = read_checkpoint(folder / 'epoch_8.pth')['state_dict_ema']
    after = read_checkpoint(tmp_path / how / 'epoch_6.pth')['state_dict']
    assert after['backbone.head.weight'].shape == (4, MINI['dims'][-1])
    assert after['backbone.stages.0.position.table'].shape[1:3] == (24, 24)
    changed = {
        name for name, value in after.items() if value.shape != before[name].shape or (value != before[name]).any()
    }
    changed = {name for name in changed if not name.endswith(('position.table', 'num_batches_tracked'))}
    assert (changed == {'backbone.head.weight', 'backbone.head.bias'}) == (how == 'linear-probe')
    if how == 'linear-probe':
        return
    tested = evaluate(
        load_config(tmp_path / how / 'four.py'),
        str(tmp_path / how / 'epoch_6.pth'),
        work_dir=str(tmp_path / 'test'),
        drawings=str(tmp_path / 'drawn'),
    )
    assert tested['accuracy/top1'] == pytest.approx(accuracy)
    assert (tmp_path / 'drawn' / 'banana' / f'{broken.stem}.jpg').is_file()


@pytest.mark.slow
def test_two_processes_validate_what_they_save(tmp_path):
    """Each has statistics of BatchNorm of its own while it trains."""
    cfg = small_config('classifier', tmp_path / 'data', train=16, batch=4, epochs=2)
    cfg.auto_scale_lr.enable = False
    config = dump(cfg, tmp_path)
    run('train', config, '--work-dir', tmp_path / 'run', processes=2, port=29517)
    (scalars,) = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    logged = [json.loads(line) for line in scalars.read_text().splitlines()][-1]
    tested = evaluate(load_config(config), str(tmp_path / 'run' / 'epoch_2.pth'), work_dir=str(tmp_path / 'test'))
    assert tested['accuracy/top1'] == pytest.approx(logged['accuracy/top1'])
    checkpoint = read_checkpoint(tmp_path / 'run' / 'epoch_2.pth')
    assert set(checkpoint['meta']['versions']) >= {'mmsoft', 'torch', 'timm', 'mmengine'}


@pytest.mark.slow
def test_a_trainings_checkpoint_loads_through_timm(trained, tmp_path):
    _, folder = trained
    options = dict(arch=MINI, img_size=64, num_classes=6)
    overlay = dict(file=str(folder / 'epoch_8.pth'), num_classes=6)
    model = timm.create_model('soft_pp_tiny', pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()
    average = read_checkpoint(folder / 'epoch_8.pth')['state_dict_ema']
    assert all(torch.equal(v, average[f'backbone.{n}']) for n, v in model.state_dict().items() if 'tracked' not in n)
    save_for_hf(model, str(tmp_path / 'hf'), model_args=options)
    again = timm.create_model(f'local-dir:{tmp_path}/hf', pretrained=True).eval()
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(x), model(x))


@pytest.mark.slow
def test_mistakes_are_named_before_training(trained, tmp_path):
    path, _ = trained
    cfg = load_config(path)
    cfg.model.backbone.num_classes = 1000
    with pytest.raises(ValueError, match=r'the train data has 6 classes, but the model 1000: set --cfg-options'):
        train(cfg, work_dir=str(tmp_path / 'a'))
    with pytest.raises(ValueError, match=r'--linear-probe, --no-pretrained and load_from exclude each other'):
        train(load_config(path), work_dir=str(tmp_path / 'b'), fine_tune='x.pth', linear_probe='x.pth')
    with pytest.raises(mmsoft.checkpoints.CheckpointError, match=r"'x\.pth' do not exist"):
        train(load_config(path), work_dir=str(tmp_path / 'c'), fine_tune='x.pth')
    cfg = load_config(path, {'train_dataloader.batch_size': 4096})
    with pytest.raises(ValueError, match=r'training pictures are less than one batch of 4096 in 1 processes'):
        train(cfg, work_dir=str(tmp_path / 'd'))
    for option, message in (
        ('model.backbone.attn=hard', "error: attn 'hard' is unknown; choose one of soft_pp, soft"),
        ('model.smoothing=2.0', 'error: smoothing must be at least 0 and below 1; got 2.0'),
        ('train_dataloader.dataset.transform.re_probb=0.3', "error: transform has no option 're_probb'"),
    ):
        done = run('train', path, '--work-dir', tmp_path / 'f', '--cfg-options', option, check=False)
        assert done.stderr.strip().splitlines()[-1].startswith(message), done.stderr[-2000:]
        assert 'Traceback' not in done.stderr
    detector = load_config(mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco'))
    with pytest.raises(ValueError, match='--linear-probe: for classifiers only; for RetinaNet take --fine-tune'):
        train(detector, work_dir=str(tmp_path / 'e'), linear_probe='x.pth')


@pytest.mark.slow
def test_recipes_scale_with_the_batch(tmp_path):
    """The lr of the paper is for 1024 images; warm-up and floor follow it."""
    cfg = small_config('classifier', tmp_path / 'data', batch=4, epochs=2)
    cfg.optim_wrapper.accumulative_counts = 2
    runner = train(cfg, work_dir=str(tmp_path / 'run'), amp=True)
    assert runner.optim_wrapper.optimizer.param_groups[0]['initial_lr'] == pytest.approx(1e-3 * 8 / 1024)
    assert runner.optim_wrapper.get_lr()['lr'][-1] == pytest.approx(5e-5 * 8 / 1024, rel=0.2)
    for name, lr in (('soft_pp_tiny', 1e-3), ('soft_large', 3.3e-4)):
        shipped = Config.fromfile(mmsoft.config_path(f'{name}_300e_in1k'))
        assert shipped.optim_wrapper.optimizer.lr == lr
        assert shipped.auto_scale_lr == dict(enable=True, base_batch_size=1024)
        assert shipped.train_cfg.max_epochs == 300
