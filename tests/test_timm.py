"""The timm contract: one class for timm, detection and classification, whose weights move without a change.

tests/timm_suite.py runs timm's own tests as well.
"""

import subprocess
import sys

import pytest
import timm
import torch
from conftest import MINI, relative_error
from timm.models import load_checkpoint
from timm.optim import create_optimizer_v2

import mmsoft.timm
from mmsoft import models
from mmsoft.models import ARCHS, SOFT, SOFTClassifier

NAMES = [
    *(f'soft_pp_{arch}' for arch in ARCHS),
    *(f'soft_{arch}' for arch in ('tiny', 'small', 'medium', 'large')),
    *(f'inline_pvt_{arch}' for arch in ('tiny', 'small', 'medium', 'large')),
    *(f'inline_{family}_{arch}' for family in ('swin', 'deit', 'cswin') for arch in ('tiny', 'small', 'base')),
]
INLINE = dict(pvt='InLinePVT', swin='InLineSwin', deit='InLineDeiT', cswin='InLineCSwin')


def mini(name='soft_pp_tiny', **options):
    return timm.create_model(name, arch=MINI, **options)


def test_importing_is_light_and_registers_every_name():
    code = 'import sys, mmsoft.timm; print(callable(mmsoft.timm.soft_tiny), {"mmengine", "mmdet"} & {*sys.modules})'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.stdout == 'True set()\n', run.stderr
    assert {*NAMES} == {*timm.list_models(module='timm')}
    assert timm.is_model('soft_pp_huge_v1')
    assert not timm.is_model('soft_tiny_v1')


@pytest.mark.parametrize('name', NAMES)
def test_a_name_is_an_architecture(name):
    model = timm.create_model(name, device='meta')
    family, _, arch = name.rpartition('_')
    if name.endswith('_v1'):
        family, _, arch = name.removesuffix('_v1').rpartition('_')
        arch += '_v1'
    with torch.device('meta'):
        if family in ('soft', 'soft_pp'):
            expected = SOFTClassifier(arch, attn=family)
            assert model.attn == family
        else:
            expected = getattr(models, f'{INLINE[family.removeprefix("inline_")]}Classifier')(arch)
        assert type(model) is type(expected)
        assert model.arch == expected.arch
        shapes = [{n: p.shape for n, p in m.state_dict().items()} for m in (model, expected)]
        assert shapes[0] == shapes[1]
    cfg = model.pretrained_cfg
    assert cfg['architecture'] == name
    assert cfg['classifier'] == 'head'
    assert model.get_submodule(cfg['first_conv']).weight.shape[1] == 3
    size, pool = cfg['input_size'], cfg['pool_size']
    assert model.forward_features(torch.zeros(1, *size, device='meta')).shape[1] == pool[0] * pool[1] + (
        model.num_prefix_tokens
    )
    if hasattr(model, 'position'):  # its table is as large as the images
        assert tuple(model.position.table.shape[1:3]) == pool


@pytest.mark.parametrize('name', ['soft_tiny', 'soft_pp_tiny'])
def test_features_are_the_backbones(name):
    """Bit for bit, whatever is asked for: pruned or not, one stage or all, in any format."""
    model, x = mini(name).eval(), torch.randn(2, 3, 70, 97)
    with torch.no_grad():
        backbone = SOFT(MINI, attn=model.attn, init_cfg=dict(type='Pretrained', checkpoint=model.state_dict())).eval()
        backbone.init_weights()
        expected = backbone(x)
        final, maps = model.forward_intermediates(x, norm=True)
        assert torch.equal(final, model.forward_features(x))
        features = mini(name, features_only=True, out_indices=(1, -1))
        features.model.load_state_dict(
            {n: v for n, v in model.state_dict().items() if n in features.model.state_dict()}
        )
        assert features.feature_info.channels() == [32, 64]
        assert features.feature_info.reduction() == [8, 32]
        assert all(map(torch.equal, maps, expected))
        assert all(map(torch.equal, features.eval()(x), (expected[1], expected[3])))
        (raw,) = model.forward_intermediates(x, indices=1, intermediates_only=True, output_fmt='NHWC')
        assert relative_error(model.norm(raw).permute(0, 3, 1, 2), expected[3]) == 0
        (tokens,) = model.forward_intermediates(x, [0], intermediates_only=True, output_fmt='NLC')
        assert torch.equal(tokens, expected[0].flatten(2).transpose(1, 2))
        early, _ = model.forward_intermediates(x, [1], stop_early=True)
        assert torch.equal(early, expected[1].flatten(2).transpose(1, 2))
    with pytest.raises(ValueError, match=r'indices must be stage numbers below 4.*got \[4\]'):
        model.forward_intermediates(x, [4])


@pytest.mark.parametrize('indices', [[0], [2], [0, 3]])
def test_pruned_models_train_every_parameter(indices):
    features = mini(features_only=True, out_indices=indices).train()
    sum(m.square().mean() for m in features(torch.randn(2, 3, 64, 64))).backward()
    assert [n for n, p in features.named_parameters() if p.grad is None] == []


def test_heads_and_pools():
    model, x = mini(num_classes=7, drop_rate=0.5).eval(), torch.randn(2, 3, 64, 96)
    tokens = model.forward_features(x)
    assert tokens.shape == (2, 1 + 2 * 3, 64)
    assert torch.equal(model.forward_head(tokens, pre_logits=True), tokens[:, 0])
    assert torch.equal(model(x), model.get_classifier()(tokens[:, 0]))
    assert not torch.equal(model.train().forward_head(tokens), model.forward_head(tokens))  # dropout
    model.eval().reset_classifier(3)
    assert model(x).shape == (2, 3)
    assert model.global_pool == 'token'
    model.reset_classifier(0, 'avg')
    assert relative_error(model(x), tokens[:, 1:].mean(1)) < 1e-6
    assert mini(num_classes=0, global_pool='').eval()(x).shape == tokens.shape
    with pytest.raises(ValueError, match="global_pool 'max' is unknown; choose one of token, avg"):
        mini(global_pool='max')
    with pytest.raises(TypeError, match=r"no option 'drop_paths'\. Did you mean 'drop_path_rate'"):
        mini(drop_paths=0.1)


def test_optimizer_groups_follow_the_model():
    """timm's optimizer factory: no decay for vectors and tables, layer-wise rates that rise with depth."""
    model = mini()
    optimizer = create_optimizer_v2(model, 'adamw', lr=1.0, weight_decay=0.1, layer_decay=0.5)
    names = {id(p): n for n, p in model.named_parameters()}
    group_of = {names[id(p)]: group for group in optimizer.param_groups for p in group['params']}
    for name, parameter in model.named_parameters():
        plain = parameter.dim() > 1 and not name.endswith('table') and not name.startswith('cls_')
        assert (group_of[name]['weight_decay'] > 0) == plain, name
    rising = ['stages.0.embed.0.0.weight', 'stages.0.blocks.0.attn.q.weight', 'stages.2.blocks.1.mlp.fc1.weight']
    rates = [group_of[name]['lr_scale'] for name in [*rising, 'stages.3.blocks.0.attn.q.weight', 'head.weight']]
    assert rates == sorted(rates)
    assert len(set(rates)) == len(rates)


@pytest.mark.filterwarnings('ignore:`torch.jit')
def test_checkpointing_and_torchscript_give_the_same(tmp_path):
    model, x = mini(drop_path_rate=0.0).train(), torch.randn(2, 3, 64, 80)
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(relative_error(a, b) < 1e-4 for a, b in zip(*gradients, strict=True) if b.abs().max() > 0)
    for name, sampling in (('soft_tiny', 'conv'), ('soft_pp_tiny', 'conv'), ('soft_pp_tiny', 'avg_pool')):
        model = mini(name, num_landmarks=6, landmark_sampling=sampling).eval()
        torch.jit.script(model).save(tmp_path / 'model.pt')
        scripted = torch.jit.load(tmp_path / 'model.pt')
        for size in ((64, 80), (225, 130)):  # beyond the bound of landmarks as well
            x = torch.randn(2, 3, *size)
            expected = model(x)
            assert relative_error(scripted(x), expected) < 1e-4
            expected = torch.autograd.grad(expected.sum(), model.stages[0].blocks[0].attn.q.weight)
        found = torch.autograd.grad(
            scripted(x).sum(), dict(scripted.named_parameters())['stages.0.blocks.0.attn.q.weight']
        )
        assert relative_error(found[0], expected[0]) < 1e-3


def test_published_files_load_through_timm(golden, tmp_path):
    """Through pretrained_cfg_overlay, with other channels, classes and sizes; a training's checkpoint as well."""
    torch.save(dict(state_dict=golden.weights), tmp_path / 'published.pth')
    own = mmsoft.checkpoints.from_published(golden.weights, attn=golden.attn)
    options = dict(arch=own.arch, img_size=own.stages[0].position.table.shape[1] * 4, num_classes=own.num_classes)
    name = dict(soft='soft_tiny', soft_pp='soft_pp_tiny')[golden.attn]
    overlay = dict(file=str(tmp_path / 'published.pth'), num_classes=own.num_classes)
    model = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **options).eval()
    x = next(iter(golden.inputs.values()))
    assert torch.equal(model(x), own(x))
    grey = timm.create_model(
        name, pretrained=True, pretrained_cfg_overlay=overlay, **{**options, 'num_classes': 5}, in_chans=1
    )
    assert grey.head.out_features == 5
    assert torch.equal(grey.stages[3].blocks[0].attn.q.weight, own.stages[3].blocks[0].attn.q.weight)
    larger = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **{**options, 'img_size': 320})
    assert larger.stages[0].position.table.shape[1:3] == (80, 80)
    torch.save(dict(state_dict={f'backbone.{n}': v for n, v in own.state_dict().items()}), tmp_path / 'ours.pth')
    overlay['file'] = str(tmp_path / 'ours.pth')
    features = timm.create_model(
        name,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        features_only=True,
        arch=own.arch,
        img_size=options['img_size'],
    ).eval()
    maps = features(x)
    assert torch.equal(maps[3], own.forward_intermediates(x, norm=True, intermediates_only=True)[3])
    torch.save(own.state_dict(), tmp_path / 'bare.pth')
    again = timm.create_model(name, **options).eval()
    load_checkpoint(again, str(tmp_path / 'bare.pth'))
    assert torch.equal(again(x), own(x))
    with pytest.raises(RuntimeError, match=r'soft_pp_small has no weights that can be fetched by name.*file='):
        timm.create_model('soft_pp_small', pretrained=True)
