"""MMEngine's new style: classes as types, `read_base`; the rest of the house reads registered names."""

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from small_runs import dump, run, small_config

from mmsoft import Predictor
from mmsoft.engine.config import load_config
from mmsoft.engine.plain import plain_config

NEW = """
from mmengine.config import read_base

with read_base():
    from .base import *

from mmdet.datasets.transforms import RandomFlip
from mmdet.models import FPN, RetinaNet
from mmengine.model import PretrainedInit
from mmengine.optim import OptimWrapper
from mmsoft import SOFT
from torch.optim import AdamW

default_scope = None
model.update(dict(type=RetinaNet, backbone=dict(type=SOFT, init_cfg=dict(type=PretrainedInit, checkpoint='gone.pth'))))
model.neck.type = FPN
optim_wrapper.update(dict(type=OptimWrapper, optimizer=dict(type=AdamW)))
for step in train_dataloader.dataset.pipeline:
    if step.type == 'RandomFlip':
        step.type = RandomFlip
del step
"""


@pytest.fixture
def paths(tmp_path):
    """An old config, and one in the new style that says the same."""
    old = dump(small_config('retinanet', tmp_path / 'data', train=4, epochs=1), tmp_path, 'base')
    new = tmp_path / 'new.py'
    new.write_text(NEW)
    return old, new


def test_classes_become_the_names_that_they_are_registered_with(paths):
    _, new = paths
    cfg = load_config(new)
    assert (cfg.model.type, cfg.model.neck.type, cfg.model.backbone.type) == (
        'mmdet.RetinaNet',
        'mmdet.FPN',
        'mmsoft.SOFT',
    )
    assert (cfg.optim_wrapper.type, cfg.optim_wrapper.optimizer.type) == ('OptimWrapper', 'AdamW')
    assert cfg.model.backbone.init_cfg.type == 'Pretrained'
    assert 'mmdet.RandomFlip' in [step.type for step in cfg.train_dataloader.dataset.pipeline]
    assert cfg.default_scope == 'mmdet'
    assert cfg.filename == str(new)
    cfg.dump(new.with_name('dumped.py'))
    assert load_config(new.with_name('dumped.py')).to_dict() == cfg.to_dict()


def test_what_mmengine_dumps_of_them_is_read_as_well(paths):
    """Its own runner writes `mmdet.models.detectors...`."""
    old, new = paths
    Config.fromfile(new).dump(new.with_name('dumped.py'))
    assert load_config(new.with_name('dumped.py')).model == load_config(new).model
    cfg = Config.fromfile(old)
    assert plain_config(cfg) is cfg


def test_a_checkpoint_that_carries_one_is_enough(paths):
    _, new = paths
    cfg = Config.fromfile(new)
    init_default_scope('mmdet')
    weights = MODELS.build(load_config(new).model).state_dict()
    torch.save(dict(state_dict=weights, meta=dict(cfg=cfg.pretty_text)), new.with_suffix('.pth'))
    assert 'mmdet.models.RetinaNet' in cfg.pretty_text
    assert len(Predictor(new.with_suffix('.pth'), device='cpu').meta['classes']) == 80


@pytest.mark.slow
def test_every_tool_takes_one_and_what_a_run_leaves(paths, tmp_path):
    _, new = paths
    text = new.read_text()
    new.write_text(text.replace(", init_cfg=dict(type=PretrainedInit, checkpoint='gone.pth')", ''))
    work, pictures = tmp_path / 'run', tmp_path / 'data' / 'coco' / 'val2017'
    run('train', new, '--work-dir', work, '--amp')
    weights = work / 'epoch_1.pth'
    for number, config in enumerate((new, work / 'new.py')):
        run('print_config', config)
        run('get_flops', config, '--shape', 64, 96)
        run('browse_dataset', config, '--out-dir', tmp_path / f'browsed{number}', '--count', 1)
        run('test', config, weights, '--work-dir', tmp_path / f'tested{number}')
        run('predict', config, weights, pictures, '--out-dir', tmp_path / f'found{number}')
    run('predict', weights, pictures, '--out-dir', tmp_path / 'alone')
    log = next(work.glob('*/*.log')).read_text()
    assert 'StopAtInvalidLoss' in log  # the guards
    assert 'SaveAnywhere' in log


def test_a_base_that_is_not_there_is_a_sentence(paths):
    paths[1].write_text(NEW.replace('.base import', '.bass import'))
    with pytest.raises(ValueError, match=r"config '.*new.py': .*bass.*not found"):
        load_config(paths[1])
