"""The lr of a short run: warm-ups that fit it, and a warning where it stays low."""

from pathlib import Path
from types import SimpleNamespace

import mmdet
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import OptimWrapper
from small_runs import dump, losses, run, small_config

import mmsoft
from mmsoft.engine.classification import CosineSchedule
from mmsoft.engine.config import load_config
from mmsoft.engine.guarded import TrainingRunner
from mmsoft.engine.schedules import LEAST_ITERATIONS, fit_length, fit_warmup, set_length, space_out

WARMUP = dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500)


def lrs(schedule, epochs, length, lr=1e-2):
    """Of each iteration, as the runner's hook steps the schedulers that the runner builds."""
    runner = TrainingRunner.__new__(TrainingRunner)
    runner._train_loop = SimpleNamespace(max_epochs=epochs, max_iters=epochs * length, dataloader=[None] * length)
    runner.optim_wrapper = OptimWrapper(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr))
    schedulers, found = runner.build_param_scheduler(schedule), []
    for iteration in range(1, epochs * length + 1):
        found += runner.optim_wrapper.get_lr()['lr']
        runner.optim_wrapper.optimizer.step()
        for scheduler in schedulers:
            if not scheduler.by_epoch or iteration % length == 0:
                scheduler.step()
    return found


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr('mmsoft.engine.schedules.print_log', lambda line, **_: lines.append(line))
    return lines


@pytest.fixture(autouse=True)
def with_train_loop(monkeypatch):
    monkeypatch.setattr(TrainingRunner, 'train_loop', property(lambda self: self._train_loop))


def test_a_run_shorter_than_its_warmup_comes_to_its_lr(told):
    steps = dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1)
    found = lrs([WARMUP, steps], epochs=12, length=5)
    assert found[0] == pytest.approx(1e-5)
    assert found[5:40] == pytest.approx([1e-2] * 35)  # a tenth of 60 iterations is warm-up
    assert found[-1] == pytest.approx(1e-4)
    assert len(told) == 1
    assert told[0].startswith('the warm-up of 500 iterations is as long as the run of 60: it takes 6 instead')
    poly = dict(type='PolyLR', power=1.0, eta_min=0.0, by_epoch=False, begin=500, end=1000)
    warmup, decay = fit_warmup([WARMUP, poly], SimpleNamespace(max_epochs=1, max_iters=100))
    assert (warmup['end'], decay['begin']) == (10, 10)
    assert (WARMUP['end'], poly['begin']) == (500, 500)  # the config stays
    (decay,) = fit_warmup([WARMUP, poly], SimpleNamespace(max_epochs=1, max_iters=2))  # nothing would follow
    assert decay['begin'] == 0


@pytest.mark.parametrize('length', [1, 2, 3])
def test_the_shortest_runs_have_an_lr_too(length, told):
    assert lrs([WARMUP], epochs=1, length=length)[-1] == pytest.approx(1e-2)


def test_longer_runs_are_left_as_they_are(told):
    found = lrs(WARMUP, epochs=1, length=501)
    assert found[250] == pytest.approx(1e-5 + 250 / 499 * (1e-2 - 1e-5))
    assert found[-1] == pytest.approx(1e-2)
    assert not told


def test_epochs_are_counted_as_epochs(told):
    warmup = dict(type='LinearLR', start_factor=0.1, end=20)
    assert lrs(warmup, epochs=20, length=3)[-1] == pytest.approx(1e-2)
    assert 'the warm-up of 20 epochs is as long as the run of 20: it takes 2 instead' in told[0]


def test_a_run_that_stays_below_its_lr_says_so(told):
    assert max(lrs(dict(type='ConstantLR', factor=0.1, end=9), epochs=3, length=2)) == pytest.approx(1e-3)
    assert told == [
        'the lr stays at or below 0.001 for the whole run, 10.0% of the 0.01 of the config: '
        'its param_scheduler is made for a longer run'
    ]


def lengthened(name, epochs, length=None):
    cfg = load_config(mmsoft.config_path(name))
    set_length(cfg, epochs, lambda: length)
    return cfg


def test_epochs_stretch_the_schedule_and_not_the_warmup():
    cfg = lengthened('retinanet_soft_pp_tiny_1x_coco', 24)
    warmup, steps = cfg.param_scheduler
    assert (warmup.end, steps.end, steps.milestones) == (500, 24, [16, 22])
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (24, 1)


def test_epochs_of_a_run_of_iterations():
    """20 pictures in batches of 2."""
    cfg = lengthened('upernet_soft_pp_tiny_160k_ade20k', 400, 10)
    warmup, poly = cfg.param_scheduler
    assert (warmup.end, poly.begin, poly.end) == (1500, 1500, 4000)
    assert (cfg.train_cfg.max_iters, cfg.train_cfg.val_interval) == (4000, 400)
    assert cfg.default_hooks.checkpoint.interval == 400


def test_epochs_of_schedules_with_lengths_of_their_own():
    cosine = dict(type='CosineAnnealingLR', T_max=150, begin=150, end=300)
    hooks = [dict(type='PipelineSwitchHook', switch_epoch=280)]
    cfg = Config(dict(train_cfg=dict(max_epochs=300, val_interval=10), param_scheduler=[WARMUP, cosine]))
    cfg.custom_hooks = hooks
    set_length(cfg, 30, None)
    assert cfg.param_scheduler == [WARMUP, dict(type='CosineAnnealingLR', begin=15, end=30)]  # whose T_max is 15
    assert cfg.custom_hooks[0].switch_epoch == 28
    assert cfg.train_cfg == dict(max_epochs=30, val_interval=1)


@pytest.mark.parametrize('epochs', [1, 3, 30])
def test_epochs_of_a_schedule_of_three_parts(epochs):
    """Of YOLOX: 5 epochs of warm-up, a cosine, and 15 epochs at its end, of which a short run has none."""
    cfg = Config.fromfile(Path(mmdet.__file__).with_name('.mim') / 'configs/yolox/yolox_tiny_8xb8-300e_coco.py')
    set_length(cfg, epochs, None)
    found = lrs(cfg.param_scheduler, epochs, 20)
    assert 0.9 * 1e-2 < max(found) <= 1e-2
    assert found[-1] < 1e-3


def test_epochs_of_classifiers_shorten_the_warmup():
    assert lengthened('soft_pp_tiny_300e_in1k', 30).custom_hooks[0].warmup_epochs == 3


def of_own_data(name, epoch_length, epochs=None):
    """The config as --data has it, with so many iterations an epoch."""
    cfg = load_config(mmsoft.config_path(name))
    if epochs is None:
        fit_length(cfg, epoch_length)
    else:
        set_length(cfg, epochs, lambda: epoch_length)
    space_out(cfg, epoch_length)
    return cfg


def test_a_detector_sees_a_few_pictures_often_enough(told):
    """16 pictures in batches of 2: the 12 epochs of COCO would be 96 iterations, in which it learns nothing."""
    cfg = of_own_data('retinanet_soft_pp_tiny_1x_coco', 8)
    warmup, steps = cfg.param_scheduler
    assert cfg.train_cfg.max_epochs == steps.end == 130
    assert (warmup.end, steps.milestones) == (104, [87, 119])
    assert (cfg.train_cfg.val_interval, cfg.default_hooks.checkpoint.interval) == (13, 13)
    assert cfg.default_hooks.checkpoint.max_keep_ckpts == 3
    assert told[0].startswith('this run takes 130 epochs of 8 iterations')


def test_a_segmentor_sees_a_few_pictures_not_for_weeks():
    cfg = of_own_data('upernet_soft_pp_tiny_160k_ade20k', 8)
    warmup, poly = cfg.param_scheduler
    assert (warmup.end, poly.begin, poly.end, cfg.train_cfg.max_iters) == (124, 124, 1248, 1248)
    assert (cfg.train_cfg.val_interval, cfg.default_hooks.checkpoint.interval) == (104, 104)


def test_a_classifier_has_epochs_enough_and_is_not_validated_after_each():
    cfg = of_own_data('soft_pp_tiny_300e_in1k', 4)
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval) == (300, 25)
    assert cfg.default_hooks.checkpoint.interval == 25


def test_the_least_is_what_a_longer_epoch_needs_as_well():
    cfg = of_own_data('retinanet_soft_pp_tiny_1x_coco', 64)
    assert LEAST_ITERATIONS <= cfg.train_cfg.max_epochs * 64 < LEAST_ITERATIONS + 2 * 64
    assert cfg.train_cfg.val_interval == 2


@pytest.mark.parametrize(
    ('name', 'length'), [('retinanet_soft_pp_tiny_1x_coco', 7330), ('upernet_soft_pp_tiny_160k_ade20k', 1263)]
)
def test_data_as_large_as_the_configs_changes_no_schedule(name, length):
    cfg, written = of_own_data(name, length), load_config(mmsoft.config_path(name))
    written.default_hooks.checkpoint.max_keep_ckpts = 3
    assert cfg.to_dict() == written.to_dict()


def test_a_length_that_is_given_stays_and_its_warmup_is_a_tenth():
    cfg = of_own_data('retinanet_soft_pp_tiny_1x_coco', 8, epochs=100)
    assert (cfg.train_cfg.max_epochs, cfg.param_scheduler[0].end, cfg.train_cfg.val_interval) == (100, 80, 20)
    cfg = of_own_data('retinanet_soft_pp_tiny_1x_coco', 8, epochs=2)
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval, cfg.default_hooks.checkpoint.interval) == (2, 2, 2)


def test_classifiers_shorten_it_as_well():
    lines, loader = [], [None] * 10
    logger = SimpleNamespace(warning=lines.append)
    cfg = Config(dict(optim_wrapper=dict(optimizer=dict(lr=1e-3))))
    runner = SimpleNamespace(train_dataloader=loader, max_iters=30, cfg=cfg, logger=logger)
    assert CosineSchedule(warmup_epochs=5)._check(runner) == 3
    assert lines[0].startswith('5 epochs of warm-up are as long as the run: it takes 3 iterations instead')
    assert CosineSchedule(warmup_epochs=2)._check(runner) == 20
    assert len(lines) == 1


def test_a_real_run_starts_with_it(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=4, epochs=2)
    cfg.param_scheduler = [WARMUP]
    done = run('train', dump(cfg, tmp_path), '--work-dir', tmp_path / 'run')
    assert 'the warm-up of 500 iterations is as long as the run of 4: it takes 2 instead' in done.stdout + done.stderr
    assert losses(tmp_path / 'run')
