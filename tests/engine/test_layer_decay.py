"""Learning rates that fall from layer to layer, for classifiers, detectors and segmentors."""

import math

import pytest
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config
from torch import nn

import mmsoft
from mmsoft.engine.layer_decay import layer_scales, use_layer_decay
from mmsoft.engine.training import train


@pytest.mark.parametrize('method', ['retinanet', 'upernet', 'classifier'])
def test_layers_near_the_picture_learn_more_slowly(method, tmp_path):
    cfg = small_config(method, tmp_path)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    plain = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    use_layer_decay(cfg.optim_wrapper, 0.5)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    lr = cfg.optim_wrapper.optimizer.lr
    shares = {names[id(group['params'][0])]: group['lr'] / lr for group in groups}
    assert shares.keys() == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    depth = sum(model.backbone.arch.depths)
    assert shares['backbone.stages.0.blocks.0.norm1.weight'] == pytest.approx(0.5**depth)
    assert shares['backbone.stages.3.blocks.0.mlp.fc1.weight'] == pytest.approx(0.5)
    assert min(shares.values()) == shares['backbone.stages.0.position.table']
    assert all(share == 1 for name, share in shares.items() if not name.startswith('backbone.') or 'head' in name)
    norms = [share for name, share in shares.items() if name.startswith(('backbone.norm.', 'backbone.map_norms.'))]
    assert norms == [1.0] * len(norms) != []
    before = {names[id(g['params'][0])]: g['weight_decay'] for g in plain}
    assert before == {names[id(g['params'][0])]: g['weight_decay'] for g in groups}
    with pytest.raises(ValueError, match=r'above 0 and at most 1; got 1\.5'):
        layer_scales(model, 1.5)
    del model.backbone
    with pytest.raises(ValueError, match='needs a backbone that tells its layers'):
        layer_scales(model, 0.9)
    cfg.optim_wrapper.constructor = 'mmdet.Other'
    with pytest.raises(ValueError, match=r"has the constructor 'mmdet\.Other'"):
        use_layer_decay(cfg.optim_wrapper, 0.9)


def test_norms_behind_the_layers_have_the_lr_of_the_config():
    """As in BEiT: the last one with those of other maps."""
    swin = mmsoft.InLineSwin(dict(dims=(16, 32, 64, 128), heads=(1, 2, 4, 8), depths=(1, 1, 1, 1)), output_norms=True)
    for backbone in (swin, mmsoft.InLineDeiTClassifier('tiny'), mmsoft.InLineDeiT('tiny')):
        model = nn.Module()
        model.backbone = backbone
        scales = layer_scales(model, 0.5)
        behind = {name: scale for name, scale in scales.items() if name.split('.')[1] not in ('stages', 'blocks')}
        assert behind.pop('backbone.norm.weight') == 1
        assert all(scale == 1 for name, scale in behind.items() if 'norms' in name or 'head' in name)
        last = max(scale for name, scale in scales.items() if '.blocks.' in name)
        assert last == 0.5


@pytest.mark.parametrize('decay', [math.nan, 2.0, 0.0, -0.5])
def test_wrong_factors_are_told_of_before_anything_is_written(decay, tmp_path):
    with pytest.raises(ValueError, match='layer_decay must be above 0 and at most 1; got'):
        train(small_config('classifier', tmp_path / 'data'), work_dir=str(tmp_path / 'run'), layer_decay=decay)
    assert not (tmp_path / 'run').exists()
