"""timm's contract, for every registered classifier: features, pruning, heads, optimizer groups.

tests/timm_suite.py runs timm's own tests as well.
"""

import pytest
import timm
import torch
from backbones import CASES
from helpers import relative_error
from timm.optim import create_optimizer_v2

import mmsoft.timm  # noqa: F401 - registers the names

every = pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
PLAIN = 'InLineDeiT'  # maps of layers, not of stages


def create(case, **options):
    return timm.create_model(case.name, arch=case.arch, **{**case.options, **options})


def matching(weights, model):
    return {name: value for name, value in weights.items() if name in model.state_dict()}


@every
def test_features_are_the_backbones(case):
    """Bit for bit, whatever is asked for: pruned or not, one stage or all, in any format."""
    model, x = create(case).eval(), torch.randn(2, 3, 70, 97)
    backbone = case.build().eval()
    backbone.load_state_dict(model.state_dict(), strict=False)
    with torch.no_grad():
        final, maps = model.forward_intermediates(x, norm=True)
        assert torch.equal(final, model.forward_features(x))
        if case.family == PLAIN:
            assert all(map(torch.equal, backbone.pyramid(maps[-1])[2:], [maps[-1], backbone(x)[3]]))
            expected = maps
        else:
            expected = backbone(x)
            assert all(map(torch.equal, maps, expected))
        features = create(case, features_only=True, out_indices=(1, -1))
        features.model.load_state_dict(matching(model.state_dict(), features.model))
        assert features.feature_info.channels() == [expected[1].shape[1], expected[-1].shape[1]]
        assert features.feature_info.reduction() == ([16, 16] if case.family == PLAIN else [8, 32])
        assert all(map(torch.equal, features.eval()(x), (expected[1], expected[-1])))
        (raw,) = model.forward_intermediates(x, indices=1, intermediates_only=True, output_fmt='NHWC')
        assert relative_error(model.norm(raw).permute(0, 3, 1, 2), expected[-1]) == 0
        (tokens,) = model.forward_intermediates(x, [0], norm=True, intermediates_only=True, output_fmt='NLC')
        assert torch.equal(tokens, expected[0].flatten(2).transpose(1, 2))
        early, (last,) = model.forward_intermediates(x, [1], stop_early=True)
        assert early.shape == (2, model.num_prefix_tokens * (case.family == PLAIN) + last[0, 0].numel(), last.shape[1])
    with pytest.raises(
        ValueError, match=rf'indices must be (stage|layer) numbers below {len(maps)}.*got \[{len(maps)}\]'
    ):
        model.forward_intermediates(x, [len(maps)])


@every
@pytest.mark.parametrize('indices', [[0], [2], [0, -1]])
def test_pruned_models_train_every_parameter(case, indices):
    features = create(case, features_only=True, out_indices=indices).train()
    sum(m.square().mean() for m in features(torch.randn(2, 3, 64, 64))).backward()
    assert [n for n, p in features.named_parameters() if p.grad is None] == []


@every
def test_heads_and_pools(case):
    model, x = create(case, num_classes=7, drop_rate=0.5).eval(), torch.randn(2, 3, 64, 96)
    tokens, prefix = model.forward_features(x), model.num_prefix_tokens
    assert prefix == (case.family in ('SOFT', PLAIN))
    assert tokens.shape == (2, prefix + (4 * 6 if case.family == PLAIN else 2 * 3), model.num_features)
    seen = tokens[:, 0] if prefix else tokens.mean(1)
    assert torch.equal(model.forward_head(tokens, pre_logits=True), seen)
    assert torch.equal(model(x), model.get_classifier()(seen))
    assert not torch.equal(model.train().forward_head(tokens), model.forward_head(tokens))  # dropout
    pool = model.global_pool
    model.eval().reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.global_pool == pool == ('token' if prefix else 'avg')
    model.reset_classifier(0, 'avg')
    assert relative_error(model(x), tokens[:, prefix:].mean(1)) < 1e-6
    assert create(case, num_classes=0, global_pool='').eval()(x).shape == tokens.shape
    pools = 'token, avg' if prefix else 'avg'
    for call in (lambda: create(case, global_pool='max'), lambda: model.reset_classifier(2, 'max')):
        with pytest.raises(ValueError, match=f"global_pool 'max' is unknown; choose one of {pools}"):
            call()
    with pytest.raises(TypeError, match=r"no option 'drop_paths'\. Did you mean 'drop_path_rate'"):
        create(case, drop_paths=0.1)
    with pytest.raises(ValueError, match=r'a classifier needs all four stages; got out_indices \(1, 2\)'):
        case.classify(out_indices=(1, 2))


@every
def test_optimizer_groups_follow_the_model(case):
    """timm's optimizer factory: no decay for vectors and tables, layer-wise rates that rise with depth."""
    model = create(case)
    optimizer = create_optimizer_v2(model, 'adamw', lr=1.0, weight_decay=0.1, layer_decay=0.5)
    names = {id(p): n for n, p in model.named_parameters()}
    group_of = {names[id(p)]: group for group in optimizer.param_groups for p in group['params']}
    for name, parameter in model.named_parameters():
        plain = parameter.dim() > 1 and not name.endswith('table') and not name.startswith('cls_')
        assert (group_of[name]['weight_decay'] > 0) == plain, name
    blocks = [name for name in group_of if name.endswith('mlp.fc1.weight')]  # one a layer
    first = next(name for name in group_of if 'embed' in name and name.endswith('weight'))
    rising = [first, *blocks[-3:], 'head.weight']
    rates = [group_of[name]['lr_scale'] for name in rising]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)


@every
def test_checkpointing_can_be_switched(case):
    model, x = create(case, drop_path_rate=0.0).train(), torch.randn(2, 3, 64, 80)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(relative_error(a, b) < 1e-4 for a, b in zip(*gradients, strict=True) if b.abs().max() > 0)
