"""Learning rates that fall from layer to layer, for classifiers, detectors and segmentors."""

import pytest
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from small_runs import small_config

from mmsoft.engine.layer_decay import layer_scales, use_layer_decay


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
