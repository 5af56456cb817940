"""What is registered from outside: known everywhere, under a name of its own. docs/ has the two examples."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial

import own_attention
import own_family
import pytest
import torch
from benchmark.cases import Case, build
from helpers import ROOT, TOOLS

import mmsoft
import mmsoft.models.register
import mmsoft.timm
from mmsoft.checkpoints import CheckpointError, convert, from_published, load, read_architecture
from mmsoft.engine.complexity import count_parts
from mmsoft.engine.config import load_config
from mmsoft.models import ATTENTIONS, FAMILIES, SOFT, Arch, Family
from mmsoft.models.family import for_each_family, our_family
from mmsoft.registry import MODELS

SMALL = dict(dims=(16, 32, 48, 64), heads=(1, 1, 1, 1), depths=(1, 2, 1, 1))


@pytest.mark.parametrize('name', ['own_attention.md', 'own_family.md'])
def test_what_the_pages_show_runs(name):
    (code,) = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / name).read_text(), re.DOTALL)
    exec(code, {})


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(name='soft_pp'), r"attention 'soft_pp' is registered already: choose another name"),
        (dict(name='efficient'), r"attention 'efficient' is registered already"),
        (dict(name='a:b'), r"the name of an attention must be letters, digits and underscores; got 'a:b'"),
        (
            dict(name='new', reads=['landmarks']),
            r"attention 'new': reads 'landmarks' is unknown; choose one of",
        ),
        (dict(name='new', reads='landmarks'), r"attention 'new': reads 'landmarks' is unknown; choose one of"),
        (dict(name='new', build=None), r"attention 'new': build must be a function of a Place, and of .*; got None"),
        (dict(name='new', build=lambda: None), r"attention 'new': build must be a function of a Place, and of options"),
        (dict(name='new', linear='yes'), r"attention 'new': linear must be True or False; got 'yes'"),
        (dict(name='new', build=lambda place, *, size: None), r"needs a default; 'size' has none"),
    ],
    ids=lambda value: '-'.join(value) if isinstance(value, dict) else '',
)
def test_attentions_that_cannot_be_registered(options, message):
    before = dict(ATTENTIONS)
    with pytest.raises(ValueError, match=message):
        mmsoft.register_attention(**{'build': own_attention.build, **options})
    assert before == ATTENTIONS


def test_options_of_an_attention_are_checked():
    with pytest.raises(TypeError, match=r"attn 'efficient' has no option 'heat'; its options are temperature"):
        SOFT('tiny', attn=dict(type='efficient', heat=2))
    with pytest.raises(ValueError, match=r"attn 'efficient': temperature must be above 0; got 0"):
        SOFT('tiny', attn=dict(type='efficient', temperature=0))
    with pytest.raises(ValueError, match=r'newton_iters=5 would have no effect.* only soft_pp and soft have it'):
        SOFT('tiny', attn='efficient', newton_iters=5)


def test_options_that_an_attention_reads_have_an_effect(monkeypatch):
    monkeypatch.setitem(ATTENTIONS, 'reader', ATTENTIONS['linear']._replace(reads=('newton_iters',)))
    SOFT('tiny', attn='reader', newton_iters=5)
    with pytest.raises(ValueError, match=r'newton_backward=.* only soft_pp and soft have it'):
        SOFT('tiny', attn='reader', newton_backward='closed')


class Net(torch.nn.Module):
    """Neither of these is ever built."""


class NetClassifier(Net): ...


@MODELS.register_module()
class Entered(Net): ...


class Own(Net): ...


class OwnClassifier(Net): ...


def names_of_families():
    return list(FAMILIES), list(MODELS.module_dict), list(mmsoft.timm.VARIANTS), list(mmsoft.timm.default_cfgs)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(title='ConvFormer'), "family 'ConvFormer' is registered already: choose another title"),
        (dict(backbone=SOFT), "family 'Net': SOFT is a name of SOFT already: choose another"),
        (dict(prefixes=dict(soft_pp={})), "family 'Net': soft_pp_tiny is a name of SOFT already"),
        (dict(title='Coat'), "family 'Coat': timm has a model coat_tiny already: choose other prefixes"),
        (dict(backbone=Entered), "family 'Net': OpenMMLab's registry has a Entered already: rename it"),
        (dict(timm_cfg=lambda arch: 1 / 0), 'division by zero'),
        (dict(ours=()), "family 'Net' needs `ours`, names by which its weights are known"),
    ],
    ids=('title', 'class', 'name', 'timm', 'registry', 'timm_cfg', 'weights'),
)
def test_families_that_cannot_be_registered(options, message):
    usual = dict(title='Net', backbone=Net, classifier=NetClassifier, archs=dict(tiny=()), ours=('a.b',), options=dict)
    before = names_of_families()
    with pytest.raises((ValueError, ZeroDivisionError), match=re.escape(message)):
        mmsoft.register_family(Family(**usual | options))
    assert names_of_families() == before


def test_a_class_is_no_family():
    with pytest.raises(TypeError, match=r"register_family takes a Family, .*; got <class '.*Net'>"):
        mmsoft.register_family(Net)


def test_who_follows_the_table_sees_what_comes_later(monkeypatch):
    monkeypatch.setattr('mmsoft.models.family.FAMILIES', dict(FAMILIES))
    monkeypatch.setattr('mmsoft.models.family._followers', [])
    seen = []
    for_each_family(lambda family: partial(seen.append, family.title))
    assert seen == list(FAMILIES)
    mmsoft.register_family(
        Family(title='Net', backbone=Net, classifier=NetClassifier, archs={}, ours=('a.b',), options=dict)
    )
    assert seen == [*FAMILIES, 'Net']


def test_weights_that_look_like_another_familys(monkeypatch):
    """Those of a family of one's own may have all names of one of ours: more names tell them apart, and only those."""
    monkeypatch.setattr('mmsoft.models.family.FAMILIES', dict(FAMILIES))
    monkeypatch.setattr('mmsoft.models.family._followers', [])
    with torch.device('meta'):
        swin = mmsoft.InLineSwin('tiny').state_dict()
    ours = FAMILIES['InLine-Swin'].ours
    net = Family(title='Net', backbone=Net, classifier=NetClassifier, archs={}, ours=ours, options=dict)
    mmsoft.register_family(net)
    with pytest.raises(
        CheckpointError, match=r'names of InLine-Swin and of Net: register .* with more names in `ours`'
    ):
        our_family(swin)
    mmsoft.register_family(replace(net, title='Own', backbone=Own, classifier=OwnClassifier, ours=(*net.ours, 'own')))
    assert our_family(swin | dict(own=torch.ones(1))).title == 'Own'


def test_the_config_knows_both(tmp_path):
    """Of a detector, through custom_imports; get_flops counts them."""
    base = "_base_ = __import__('mmsoft').config_path('retinanet_soft_pp_tiny_1x_coco')\n"
    backbones = dict(
        own_family="_delete_=True, type='mmsoft.ConvFormer', arch='tiny'", own_attention="attn='efficient'"
    )
    for module, backbone in backbones.items():
        path = tmp_path / f'{module}.py'
        imports = f"custom_imports = dict(imports=['{module}'])\n"
        path.write_text(f'{base}{imports}model = dict(backbone=dict({backbone}))')
        parts, _ = count_parts(load_config(path), (64, 96))
        assert parts[-1].name == 'total'
        assert parts[-1].macs > 1e8
    assert isinstance(
        MODELS.build(dict(type='mmsoft.ConvFormerClassifier', arch=SMALL)), own_family.ConvFormerClassifier
    )


@pytest.mark.parametrize(
    'model', ['attention:efficient', 'pyramid:efficient', 'convformer_tiny', 'upernet:convformer_tiny']
)
def test_the_benchmark_knows_both(model):
    work = build(Case(model, (64, 96)), 'meta')
    assert any(type(m) in (own_attention.EfficientAttention, own_family.TokenMixer) for m in work.module.modules())


@pytest.mark.slow
def test_the_converter_is_told_of_it(tmp_path):
    """Its command line reads no config that could import the family."""
    torch.save(mmsoft.ConvFormer(SMALL).state_dict(), tmp_path / 'ours.pth')
    command = [sys.executable, TOOLS / 'convert_checkpoint.py', 'ours.pth', 'theirs.pth']
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((str(ROOT), str(ROOT / 'docs'))))
    for options, said in (
        ([], "'ours.pth' holds neither the authors' names of known weights nor ours"),
        (['--import', 'none_such'], "argument --import: 'none_such' cannot be imported: No module named 'none_such'"),
        (['--import', 'own_family'], 'a backbone, ConvFormer'),
    ):
        run = subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert said in run.stdout + run.stderr
        assert (run.returncode == 0) == (tmp_path / 'theirs.pth').is_file() == (options[-1:] == ['own_family'])


def test_the_converter_knows_the_family(tmp_path):
    model = mmsoft.ConvFormerClassifier(SMALL, num_classes=5, kernel=5).eval()
    torch.save(model.state_dict(), tmp_path / 'ours.pth')
    assert 'ConvFormer' in convert(tmp_path / 'ours.pth', tmp_path / 'theirs.pth')
    theirs = torch.load(tmp_path / 'theirs.pth', weights_only=True)
    assert 'stages.1.1.token_mixer.dwconv.weight' in theirs
    assert 'downsample_layers.0.norm.bias' in theirs
    again = from_published(tmp_path / 'theirs.pth')
    assert (again.arch, again.kernel) == (Arch(**SMALL), 5)
    x = torch.randn(1, 3, 64, 64)
    assert torch.equal(again(x), model(x))
    assert load(tmp_path / 'theirs.pth').keys() == model.state_dict().keys()
    assert read_architecture(mmsoft.ConvFormer('small').state_dict()).name == 'small'
    with pytest.raises(CheckpointError, match=r'are not the weights, .* \(stages\.0\.blocks\.0\.attn\.conv\.weight, '):
        read_architecture(dict(x=torch.ones(1)))
