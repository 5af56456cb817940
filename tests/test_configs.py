"""Every shipped config: built in full, trained and asked for predictions when narrow, inherited as users do."""

import importlib
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import ROOT
from mmengine.config import Config
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from small_runs import narrow_model

import mmsoft
from mmsoft.datasets.class_folders import ClassSample
from mmsoft.engine.config import check_pretrained, load_config, without_pretrained
from mmsoft.models import FAMILIES

CONFIGS = sorted((ROOT / 'configs').glob('*.py'))
SEGMENTORS = ('upernet', 'semantic_fpn')
METHODS = ('retinanet', 'mask_rcnn', *SEGMENTORS, 'classifier')
# Parameters of the whole model, in millions: Tables 3 to 5 of SOFT's paper, what InLine's code has, and
# what the READMEs of MILA and RAVLT print.
PAPER = {
    ('retinanet', 'soft'): dict(tiny=23, small=38, medium=59, large=98),
    ('mask_rcnn', 'soft'): dict(tiny=33, small=48, medium=69, large=106),
    ('upernet', 'soft'): dict(small=60, medium=81, large=121),
    # with a head of 1000 classes; the paper prints 13, 27, 48 and 85
    ('classifier', 'soft'): dict(tiny=13.07, small=28.38, medium=49.58, large=87.29),
    ('classifier', 'inline_pvt'): dict(tiny=12.03, small=21.56, medium=37.62, large=51.15),
    ('classifier', 'inline_swin'): dict(tiny=29.22, small=49.79, base=88.35),
    ('classifier', 'inline_deit'): dict(tiny=6.48, small=16.73, base=23.80),
    ('classifier', 'inline_cswin'): dict(tiny=20.60, small=33.03, base=73.41),
    ('classifier', 'mila'): dict(tiny=24.39, small=43.02, base=95.98),
    ('classifier', 'ravlt'): dict(tiny=14.90, small=25.59, base=48.24, large=95.24),
    ('mask_rcnn', 'mila'): dict(tiny=44, small=63, base=115),
    ('upernet', 'mila'): dict(base=128),
    ('retinanet', 'ravlt'): dict(tiny=24, small=34, base=57, large=104),
    ('mask_rcnn', 'ravlt'): dict(tiny=33, small=44, base=67, large=114),
    ('upernet', 'ravlt'): dict(small=55, base=77, large=125),
    ('semantic_fpn', 'ravlt'): dict(tiny=18, small=28, base=51, large=98),
}


def method_of(path):
    return 'classifier' if 'in1k' in path.name else re.split('_(?:soft|inline|mila|ravlt)', path.name)[0]


def family_of(path):
    return re.search(r'soft|inline_(pvt|swin|deit|cswin)|mila|ravlt', path.name)[0]


def build(cfg, narrow=False):
    init_default_scope(cfg.default_scope)
    without_pretrained(cfg)
    if narrow:
        narrow_model(cfg.model)
    return revert_sync_batchnorm(MODELS.build(cfg.model))  # no SyncBN on a CPU


def test_there_are_configs():
    assert len(CONFIGS) == 87
    assert {method_of(path) for path in CONFIGS} == set(METHODS)
    assert {family_of(path) for path in CONFIGS} == {family for _, family in PAPER}
    families = [family for family in FAMILIES.values() if family.backbone.__module__.startswith('mmsoft.')]
    names = {name for family in families for name in family.variants if not name.endswith('_v1')}
    assert {path.stem for path in CONFIGS if method_of(path) == 'classifier'} == {f'{name}_300e_in1k' for name in names}


@pytest.mark.parametrize('path', CONFIGS, ids=lambda path: path.stem)
def test_sizes_recipes_and_predictions(path):
    """The whole model has the paper's size; a narrow one, built from the same file, predicts."""
    cfg, method = load_config(path), method_of(path)
    if method == 'classifier':
        check_pretrained(cfg)  # it starts at random
    else:
        with pytest.raises(
            mmsoft.checkpoints.CheckpointError, match=r'Three ways out(.|\n)*published(.|\n)*--no-pretrained'
        ):
            check_pretrained(cfg)
    with torch.device('meta'):
        model = build(cfg)
    millions = sum(p.numel() for p in model.parameters()) / 1e6
    arch = next(part for part in path.stem.split('_') if part in ('tiny', 'small', 'medium', 'base', 'large'))
    family = family_of(path)
    expected = PAPER.get((method, family), {}).get(arch)
    assert expected is None or abs(millions / expected - 1) < _tolerance(method, family), millions
    _check_decay(model, cfg, method, family)
    batch = dict(classifier=1024 if family == 'soft' else 512).get(method, 8 if 'cityscapes' in path.name else 16)
    assert cfg.auto_scale_lr == dict(enable=method == 'classifier', base_batch_size=batch)
    model = build(load_config(path), narrow=True)
    model.eval()
    data = example(model, 1, train=False)
    with torch.no_grad():
        (sample,) = model.test_step(data)
    if method == 'classifier':
        assert sample.pred_scores.sum() == pytest.approx(1)
        if family == 'soft':
            assert model.backbone.attn == ('soft_pp' if 'soft_pp' in path.name else 'soft')
    elif method in SEGMENTORS:
        assert sample.pred_sem_seg.data.shape == (1, 70, 90)
    else:
        assert sample.pred_instances.bboxes.isfinite().all()
        assert ('masks' in sample.pred_instances) == (method == 'mask_rcnn')


def _tolerance(method, family):
    """Of sizes: SOFT's are rounded, and so are those of MILA's and RAVLT's detectors and segmentors."""
    return 0.03 if family == 'soft' or method != 'classifier' else 0.0005


def _check_decay(model, cfg, method, family):
    """Of RAVLT's recipes with an lr of 1e-4 and a decay of 1e-4 everything decays, of its others and MILA's all but
    norms, elsewhere matrices.
    """
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper).optimizer
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {names[id(p)] for group in optimizer.param_groups if group['weight_decay'] for p in group['params']}
    norms = (torch.nn.LayerNorm, torch.nn.modules.batchnorm._BatchNorm)
    normed = {
        f'{name}.{part}' for name, m in model.named_modules() if isinstance(m, norms) for part in ('weight', 'bias')
    }
    for name, parameter in model.named_parameters():
        if family in ('mila', 'ravlt') and method != 'classifier':
            wanted = method in ('retinanet', 'semantic_fpn') or name not in normed
        else:  # not tables, not the class token; the authors of RAVLT let its scales decay
            wanted = name.endswith(('weight', 'attn.local', 'gamma_1', 'gamma_2')) and parameter.dim() > 1
        assert (name in decayed) == wanted, (name, tuple(parameter.shape))


def example(model, count, train):
    """Random images of 70 x 90 (96 x 96 for a segmentor's training) with two objects each."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData, PixelData
    from mmseg.structures import SegDataSample

    segmentor = hasattr(model, 'decode_head')
    height, width = (96, 96) if segmentor and train else (70, 90)
    if segmentor and train:
        model.data_preprocessor.size = (height, width)
    samples = []
    if hasattr(model, 'mixup'):
        samples = [ClassSample(metainfo=dict(img_path='x'), gt_label=index) for index in range(count)]
        return dict(inputs=list(torch.randn(count, 3, 96, 80)), data_samples=samples)
    for _ in range(count):
        meta = dict(img_shape=(height, width), ori_shape=(height, width), scale_factor=(1.0, 1.0), img_id=0)
        sample = (SegDataSample if segmentor else DetDataSample)(metainfo=meta)
        if segmentor:
            sample.gt_sem_seg = PixelData(data=torch.randint(19, (1, height, width)))
        else:
            boxes = torch.tensor([[5.0, 8.0, 40.0, 50.0], [30.0, 20.0, 85.0, 65.0]])
            masks = torch.zeros(2, height, width, dtype=torch.uint8)
            masks[0, 8:50, 5:40] = masks[1, 20:65, 30:85] = 1
            sample.gt_instances = InstanceData(
                bboxes=boxes, labels=torch.tensor([3, 7]), masks=BitmapMasks(masks.numpy(), height, width)
            )
        samples.append(sample)
    return dict(
        inputs=[torch.randint(256, (3, height, width), dtype=torch.uint8) for _ in range(count)], data_samples=samples
    )


# The smallest of each method and family, which is the last of its names.
TINY = {(method_of(path), family_of(path)): path for path in CONFIGS}


@pytest.mark.parametrize(('method', 'family'), sorted(TINY))
def test_every_parameter_learns(method, family):
    """No unused parameters: DDP needs no find_unused_parameters."""
    path = TINY[method, family]
    model = build(load_config(path), narrow=True)
    data = model.data_preprocessor(example(model, 2, train=True), True)
    losses = model(**data, mode='loss')
    loss, _ = model.parse_losses(losses)
    assert loss.isfinite()
    loss.backward()
    assert [name for name, p in model.named_parameters() if p.requires_grad and p.grad is None] == []


def test_schedules_hold_their_arithmetic():
    """The numbers that the comments of the schedules give."""

    def base(name):
        return Config.fromfile(CONFIGS[0].parent / '_base_' / f'{name}.py')

    for name, images, batch, epochs in (('schedule_1x', 117266, 16, 12), ('schedule_3x', 117266, 16, 36)):
        cfg = base(name)
        assert f'{math.ceil(images / batch) * epochs:,}' in cfg.text
        assert cfg.auto_scale_lr.base_batch_size == batch
        assert cfg.train_cfg.max_epochs == cfg.param_scheduler[1].end == epochs
    cfg = base('schedule_300e')
    assert f'{1281167 // 1024:,} iterations' in cfg.text  # the last batch is dropped
    assert f'{1281167 // 1024 * 300:,} in all' in cfg.text
    assert (cfg.train_cfg.max_epochs, cfg.auto_scale_lr.base_batch_size) == (300, 1024)
    for name, images, batch, iterations in (
        ('schedule_160k', 20210, 16, 160000),
        ('schedule_80k_ravlt', 20210, 16, 80000),
        ('schedule_40k', 2975, 8, 40000),
    ):
        cfg = base(name)
        assert f'{images:,}' in cfg.text
        assert f'{iterations * batch / images:.0f} epochs' in cfg.text
        assert (cfg.train_cfg.max_iters, cfg.auto_scale_lr.base_batch_size) == (iterations, batch)
        assert cfg.param_scheduler[-1].end == cfg.train_cfg.max_iters
        assert cfg.train_cfg.max_iters % cfg.default_hooks.checkpoint.interval == 0
        assert cfg.default_hooks.checkpoint.interval == cfg.train_cfg.val_interval


# Of InLine's own training: epochs of warm-up, last lr, drop path, clipped norm of gradients, size of the images.
INLINE = {
    'pvt': dict(tiny=(5, 5e-6, 0.1, None, 224), small=(5, 5e-6, 0.1, None, 224))
    | dict(medium=(5, 5e-6, 0.3, 1, 224), large=(5, 5e-6, 0.3, 1, 224)),
    'swin': dict(tiny=(20, 5e-6, 0.2, 5, 224), small=(20, 5e-6, 0.3, 5, 224), base=(20, 5e-6, 0.5, 5, 224)),
    'deit': dict(tiny=(20, 5e-6, 0.1, 5, 224), small=(20, 5e-6, 0.1, 5, 288), base=(20, 5e-6, 0.1, 5, 448)),
    'cswin': dict(tiny=(20, 1e-5, 0.2, None, 224), small=(20, 1e-5, 0.4, None, 224), base=(20, 1e-5, 0.5, None, 224)),
}


@pytest.mark.parametrize('family', INLINE)
def test_recipes_of_inline_are_its_authors(family):
    for arch, (warmup_epochs, min_lr, drop_path_rate, clip, size) in INLINE[family].items():
        cfg = load_config(mmsoft.config_path(f'inline_{family}_{arch}_300e_in1k'))
        schedule, *average, _ = cfg.custom_hooks
        assert schedule == dict(
            type='mmsoft.CosineSchedule', warmup_epochs=warmup_epochs, warmup_lr=5e-7, min_lr=min_lr
        )
        ema = dict(type='mmsoft.AverageWeights', decay=0.9996, batch=4096)
        assert average == ([ema] if family == 'cswin' else [])
        optimizer = cfg.optim_wrapper.optimizer
        assert (optimizer.lr, optimizer.weight_decay) == (5e-4, 0.1 if (family, arch) == ('cswin', 'base') else 0.05)
        assert cfg.optim_wrapper.clip_grad == (clip and dict(max_norm=clip))
        assert (cfg.model.backbone.drop_path_rate, cfg.model.backbone.img_size) == (drop_path_rate, size)
        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            assert loader.dataset.transform.input_size == size
        assert cfg.test_dataloader.dataset.transform.crop_pct == 224 / 256
        others = [path for path in CONFIGS if re.search(f'_inline_{family}_{arch}_', path.name)]
        assert bool(others) == (family != 'deit' or arch == 'tiny')
        for path in others:
            backbone = load_config(path).model.backbone
            assert (backbone.arch, backbone.drop_path_rate) == (arch, drop_path_rate)
            assert backbone.init_cfg.checkpoint == f'pretrained/inline_{family}_{arch}.pth'


# Of MILA's and RAVLT's own training on COCO and ADE20K: lr, weight decay, drop path by size.
FRONTIER = {
    ('mask_rcnn', 'mila'): (1e-4, 0.05, dict(tiny=0.1, small=0.1, base=0.1)),
    ('upernet', 'mila'): (6e-5, 0.01, dict(base=0.5)),
    ('retinanet', 'ravlt'): (1e-4, 1e-4, dict(tiny=0.1, small=0.15, base=0.4, large=0.55)),
    ('mask_rcnn', 'ravlt'): (1e-4, 0.05, dict(tiny=0.1, small=0.15, base=0.4, large=0.55)),
    ('upernet', 'ravlt'): (6e-5, 0.01, dict(small=0.15, base=0.4, large=0.55)),
    ('semantic_fpn', 'ravlt'): (1e-4, 1e-4, dict(tiny=0.1, small=0.15, base=0.4, large=0.55)),
}


@pytest.mark.parametrize(('method', 'family'), FRONTIER)
def test_recipes_of_mila_and_ravlt_are_their_authors(method, family):
    lr, decay, drop_paths = FRONTIER[method, family]
    paths = [path for path in CONFIGS if (method_of(path), family_of(path)) == (method, family)]
    assert len(paths) == len(drop_paths)
    for arch, drop_path in drop_paths.items():
        (path,) = [path for path in paths if f'_{arch}_' in path.name]
        cfg = load_config(path)
        backbone, optimizer = cfg.model.backbone, cfg.optim_wrapper.optimizer
        assert (backbone.drop_path_rate, optimizer.lr, optimizer.weight_decay) == (drop_path, lr, decay)
        assert backbone.init_cfg.checkpoint == f'pretrained/{family}_{arch}.pth'
        assert cfg.get('sync_bn') == ('torch' if family == 'ravlt' else None)
        dims = FAMILIES[backbone.type.removeprefix('mmsoft.')].archs[arch].dims
        assert [dims[i] for i in backbone.get('out_indices', range(4))] == (
            cfg.model.decode_head if method == 'upernet' else cfg.model.neck
        ).in_channels
        steps = str(cfg.train_dataloader.dataset.pipeline)
        assert ("'absolute_range'" in steps) == ((method, family) == ('mask_rcnn', 'mila'))


def test_pretraining_of_mila_has_mesa_and_of_ravlt_repeats():
    for arch, weight in dict(tiny=1.0, small=1.5, base=2.0).items():
        cfg = load_config(mmsoft.config_path(f'mila_{arch}_300e_in1k'))
        assert cfg.model.mesa == dict(weight=weight, begin=75 / cfg.train_cfg.max_epochs)
        assert dict(type='mmsoft.AverageWeights', decay=0.9996, batch=4096) in cfg.custom_hooks
    for arch in FAMILIES['RAVLT'].archs:
        cfg = load_config(mmsoft.config_path(f'ravlt_{arch}_300e_in1k'))
        assert cfg.train_dataloader.sampler == dict(type='mmsoft.RepeatedSampler', num_repeats=3)
        assert dict(type='mmsoft.AverageWeights', decay=0.99996, batch=512) in cfg.custom_hooks


@pytest.mark.parametrize('how', ['relative path', 'installed package'])
def test_a_config_of_ones_own_inherits_ours(how, tmp_path):
    if how == 'relative path':
        base = repr(os.path.relpath(CONFIGS[0].parent / 'retinanet_soft_pp_tiny_1x_coco.py', tmp_path))
    else:
        base = "__import__('mmsoft').config_path('retinanet_soft_pp_tiny_1x_coco')"
    (tmp_path / 'mine.py').write_text(f'_base_ = {base}\nmodel = dict(bbox_head=dict(num_classes=7))\n')
    code = (
        'from mmengine.config import Config; from mmdet.registry import MODELS; '
        'from mmengine.registry import init_default_scope; init_default_scope("mmdet"); '
        'cfg = Config.fromfile("mine.py"); model = MODELS.build(cfg.model); '
        'print(model.bbox_head.num_classes, cfg.train_cfg.max_epochs)'
    )
    run = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, capture_output=True, text=True)
    assert run.stdout.split()[-2:] == ['7', '12'], run.stderr


@pytest.mark.parametrize('library', ['mmdet', 'mmseg'])
def test_configs_of_the_libraries_take_the_backbone(library, tmp_path):
    """The README's example: only the backbone and the widths change."""
    package = Path(importlib.import_module(library).__file__).parent
    if library == 'mmdet':
        base, change = 'retinanet/retinanet_r50_fpn_1x_coco.py', 'neck=dict(in_channels=[64, 128, 320, 512])'
    else:
        base = 'upernet/upernet_r50_4xb4-160k_ade20k-512x512.py'
        change = (
            'pretrained=None, decode_head=dict(in_channels=[64, 128, 320, 512]), auxiliary_head=dict(in_channels=320)'
        )
    (tmp_path / 'mine.py').write_text(
        f'_base_ = {str(package / ".mim" / "configs" / base)!r}\n'
        f"model = dict(backbone=dict(_delete_=True, type='mmsoft.SOFT', arch='tiny'), {change})\n"
    )
    cfg = Config.fromfile(tmp_path / 'mine.py')
    init_default_scope(library)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    assert type(model.backbone).__name__ == 'SOFT'


def test_a_dict_over_a_name_of_the_base_is_a_sentence(tmp_path):
    base, arch = mmsoft.config_path('retinanet_soft_pp_tiny_1x_coco'), dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4))
    (tmp_path / 'own.py').write_text(f'_base_ = {base!r}\nmodel = dict(backbone=dict(arch={arch}))\n')
    with pytest.raises(ValueError, match=r"own\.py': arch=.*_delete_=True"):
        load_config(tmp_path / 'own.py')


def test_options_move_the_data_and_name_mistakes(monkeypatch):
    path = next(path for path in CONFIGS if 'mask_rcnn' in path.name)
    cfg = load_config(path, {'data_root': '/elsewhere/coco'})
    assert cfg.train_dataloader.dataset.data_root.rstrip('/') == '/elsewhere/coco'
    assert cfg.test_evaluator.ann_file == '/elsewhere/coco/annotations/instances_val2017.json'
    monkeypatch.setenv('MMSOFT_DATA', '/mnt/sets')
    assert load_config(path).val_dataloader.dataset.data_root == '/mnt/sets/coco/'
    with pytest.raises(ValueError, match="the config has no 'optim_wraper'"):
        load_config(path, {'optim_wraper.optimizer.lr': 1})
    with pytest.raises(FileNotFoundError, match=r"config 'configs/retina.py' does not exist"):
        load_config('configs/retina.py')
    with pytest.raises(FileNotFoundError, match="no config 'retina'; it has inline_cswin_base_300e_in1k, "):
        mmsoft.config_path('retina')


def test_pretrained_weights_are_found_wherever_they_are_asked_for(tmp_path):
    """In a list beside other initialisers as well, which --no-pretrained leaves alone."""
    cfg = load_config(CONFIGS[0])
    other = dict(type='Constant', layer='Linear', val=0.5)
    cfg.model.backbone.init_cfg = [other, dict(type='Pretrained', checkpoint=str(tmp_path / 'none.pth'))]
    with pytest.raises(mmsoft.checkpoints.CheckpointError, match=r'none\.pth'):
        check_pretrained(cfg)
    without_pretrained(cfg)
    assert cfg.model.backbone.init_cfg == [other]
    check_pretrained(cfg)


@pytest.mark.parametrize('name', ['mask_rcnn_soft_pp_tiny_1x_coco', 'soft_pp_tiny_300e_in1k'])
def test_a_loader_is_guarded_in_a_copy(name, tmp_path):
    from mmsoft.engine.guarded import read_safely

    cfg = load_config(mmsoft.config_path(name))
    before = cfg.to_dict()
    guarded = read_safely(cfg.train_dataloader, tmp_path / 'faults.jsonl', training=True)
    assert str(guarded).count(str(tmp_path / 'faults.jsonl')) == (1 if 'in1k' in name else 2)
    assert read_safely(guarded, tmp_path / 'faults.jsonl', training=True) == guarded  # nothing piles up
    assert cfg.to_dict() == before


@pytest.mark.parametrize('library', ['mmdet', 'mmseg'])
def test_the_demo_lies_over_any_config(library, tmp_path, monkeypatch):
    """Also over one with another backbone, classes of its own and batches in validation."""
    from mmsoft.engine import demo

    monkeypatch.setattr(demo, 'IMAGES', 4)
    monkeypatch.setattr(demo, 'VAL_IMAGES', 2)
    package = Path(importlib.import_module(library).__file__).parent / '.mim' / 'configs'
    name = dict(mmdet='mask_rcnn/mask-rcnn_r50_fpn_1x_coco.py', mmseg='upernet/upernet_r50_4xb4-80k_ade20k-512x512.py')[
        library
    ]
    cfg = load_config(package / name)
    cfg.val_dataloader.batch_size = 3
    cfg.train_dataloader.dataset.metainfo = dict(classes=('mine',))
    (cfg.model.roi_head.bbox_head if library == 'mmdet' else cfg.model.decode_head).num_classes = 1
    demo.overlay(cfg, tmp_path)
    init_default_scope(library)
    model = revert_sync_batchnorm(MODELS.build(cfg.model)).eval()
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    inputs = model.data_preprocessor(batch, training=True)['inputs']
    assert inputs.shape[:2] == (4, 3)
    assert max(inputs.shape[2:]) == max(demo.SIZE)
    with torch.no_grad():
        (sample,) = model.test_step(next(iter(Runner.build_dataloader(cfg.val_dataloader, seed=0))))
    assert sample.img_shape == demo.SIZE


# the rest is as InLine's
NEW_STEPS = ('mask_rcnn_mila_tiny', 'retinanet_ravlt_tiny', 'semantic_fpn_ravlt_tiny', 'mila_tiny', 'ravlt_tiny')


@pytest.mark.parametrize(
    'path',
    [p for p in TINY.values() if '_inline_' in f'_{p.stem}' or p.stem.startswith(NEW_STEPS)],
    ids=lambda path: path.stem,
)
def test_the_demo_trains_every_newer_family(path, tmp_path, monkeypatch):
    """A step of its own optimiser on its own world, in the narrow model of each method and family."""
    from mmsoft.engine import demo

    monkeypatch.setattr(demo, 'IMAGES', 4)
    monkeypatch.setattr(demo, 'VAL_IMAGES', 2)
    monkeypatch.setattr(demo, 'CLASS_SCENES', (96, 128))
    monkeypatch.setitem(demo.BATCH, 'classes', 4)
    cfg = load_config(path)
    demo.overlay(cfg, tmp_path)
    init_default_scope(cfg.default_scope)
    narrow_model(cfg.model)
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    losses = [sum(v for k, v in model.train_step(batch, optimizer).items() if k == 'loss').item() for _ in range(2)]
    assert all(math.isfinite(loss) for loss in losses)
    with torch.no_grad():
        samples = model.eval().test_step(next(iter(Runner.build_dataloader(cfg.val_dataloader, seed=0))))
    assert samples


def test_options_that_the_demo_sets_are_refused(tmp_path, monkeypatch):
    from mmsoft.engine import demo

    monkeypatch.setattr(demo, 'IMAGES', 4)
    demo.check_options({'model.backbone.kernel': 'relu', 'optim_wrapper.optimizer.weight_decay': 0.1})
    for key in ('train_cfg.max_epochs', 'train_dataloader.batch_size', 'train_dataloader', 'data_root', 'train_cfg'):
        with pytest.raises(ValueError, match=f'--demo sets {key} itself, .*: leave it out of --cfg-options'):
            demo.check_options({key: 1})
    options = {'train_cfg.max_epochs': 77, 'optim_wrapper.optimizer.lr': 7.0, 'train_dataloader.batch_size': 77}
    cfg = load_config(CONFIGS[-1].parent / 'retinanet_inline_pvt_tiny_1x_coco.py', options)
    demo.overlay(cfg, tmp_path)
    assert (cfg.train_cfg.max_epochs, cfg.train_dataloader.batch_size) == (demo.EPOCHS['boxes'], demo.BATCH['boxes'])
    assert cfg.optim_wrapper.optimizer.lr == demo.LR
