"""The timm contract: one class for timm, detection and classification, whose weights move without a change.

test_every_classifier has what holds for all models; tests/timm_suite.py runs timm's own tests as well.
"""

import subprocess
import sys

import pytest
import timm
import torch
from timm.models import load_checkpoint

import mmsoft.timm
from mmsoft import models
from mmsoft.checkpoints import CheckpointError
from mmsoft.models import ARCHS, SOFTClassifier

NAMES = [
    *(f'soft_pp_{arch}' for arch in ARCHS),
    *(f'soft_{arch}' for arch in ('tiny', 'small', 'medium', 'large')),
    *(f'inline_pvt_{arch}' for arch in ('tiny', 'small', 'medium', 'large')),
    *(f'inline_{family}_{arch}' for family in ('swin', 'deit', 'cswin') for arch in ('tiny', 'small', 'base')),
    *(f'mila_{arch}' for arch in ('tiny', 'small', 'base')),
    *(f'ravlt_{arch}' for arch in ('tiny', 'small', 'base', 'large')),
]
OTHERS = dict(inline_pvt='InLinePVT', inline_swin='InLineSwin', inline_deit='InLineDeiT', inline_cswin='InLineCSwin')
OTHERS |= dict(mila='MILA', ravlt='RAVLT')


@pytest.mark.slow
def test_importing_is_light_and_registers_every_name():
    code = 'import sys, mmsoft.timm; print(callable(mmsoft.timm.soft_tiny), {"mmengine", "mmdet"} & {*sys.modules})'
    code += '; import timm; print(*timm.list_models(module="timm"))'
    run = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert run.stdout.startswith('True set()\n'), run.stderr
    assert {*NAMES} == {*run.stdout.split('\n')[1].split()}
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
            expected = getattr(models, f'{OTHERS[family]}Classifier')(arch)
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


@pytest.mark.parametrize('file', ['inline_pvt_small', 'inline_swin_tiny', 'soft_pp_tiny'])
def test_weights_of_another_model_are_told_apart(file, tmp_path):
    torch.save(timm.create_model(file).state_dict(), tmp_path / 'weights.pth')
    options = dict(pretrained=True, pretrained_cfg_overlay=dict(file=str(tmp_path / 'weights.pth')))
    with pytest.raises(CheckpointError, match=r'InLinePVTClassifier(.|\n)*missing(.|\n)*unexpected'):
        timm.create_model('inline_pvt_tiny', **options)
    model = timm.create_model(file, num_classes=3, in_chans=1, **options)  # timm fits head and first convolution
    assert model(torch.randn(1, 1, 64, 64)).shape == (1, 3)
