"""Weights of the InLine families on their way: names, architectures, loading, conversion, publication."""

import json

import pytest
import torch
from helpers import Golden, relative_error
from mmengine.config import Config
from mmengine.registry import MODELS as REGISTRY
from small_runs import DOUBLING, PLAIN, dump, narrow_model, small_config

import mmsoft
from mmsoft.checkpoints import CheckpointError, convert, from_published, load, load_pretrained, read_architecture
from mmsoft.checkpoints.loading import names_for
from mmsoft.engine import config
from mmsoft.engine.publishing import publish
from mmsoft.engine.training import evaluate
from mmsoft.models import (
    FAMILIES,
    SOFT,
    InLineCSwin,
    InLineCSwinClassifier,
    InLineDeiT,
    InLineDeiTClassifier,
    InLineSwin,
    InLineSwinClassifier,
    SOFTClassifier,
)
from mmsoft.models.family import our_family, published_family

INLINE = {title: family for title, family in FAMILIES.items() if title.startswith('InLine')}
SMALL = {
    'InLine-PVT': dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 1, 2, 1)),
    'InLine-Swin': dict(DOUBLING, inline=(1, 0, 1, 0)),
    'InLine-DeiT': PLAIN,
    'InLine-CSwin': dict(DOUBLING, inline=(1, 1, 1, 0)),
}


def published(title):
    return Golden(title.lower().replace('-', '_')).weights


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def test_all_families_are_here():
    assert list(INLINE) == list(SMALL) == ['InLine-PVT', 'InLine-Swin', 'InLine-DeiT', 'InLine-CSwin']


@pytest.mark.parametrize('title', INLINE)
def test_names_go_both_ways_exactly(title):
    """And no other family takes these for its own."""
    family, theirs = INLINE[title], published(title)
    ours = family.to_ours(theirs)
    assert same(family.to_published(ours), theirs)
    model = family.classifier(SMALL[title], num_classes=4, img_size=64)
    weights = model.state_dict()
    assert same(family.to_ours(family.to_published(weights)), weights)
    backbone = family.backbone(SMALL[title], out_indices=(0, 1)).state_dict()
    for found, name in ((ours, None), (weights, None), (backbone, None), (theirs, title)):
        assert [f.title for f in FAMILIES.values() if f.is_published(found)] == ([name] if name else [])
        assert [f.title for f in FAMILIES.values() if f.is_ours(found)] == ([] if name else [title])
    assert {name.split('.')[0] for name in family.to_published(weights)} <= {name.split('.')[0] for name in theirs}


def test_other_attentions_in_softs_pyramid_are_soft_still():
    """Those of InLine have the names of InLine-PVT's; what of an architecture leaves no trace is told."""
    weights = SOFTClassifier(SMALL['InLine-PVT'], attn='inline').state_dict()
    assert our_family(weights).title == 'SOFT'
    with pytest.raises(CheckpointError, match=r'read from the weights of attn soft and soft_pp in a pyramid alone'):
        read_architecture(weights)
    assert load_pretrained(SOFT(SMALL['InLine-PVT'], attn='inline'), weights).complete


def test_stacked_projections_are_cut_in_inline_blocks_alone():
    theirs = published('InLine-Swin')
    ours = INLINE['InLine-Swin'].to_ours(theirs)
    q, kv = (ours[f'stages.0.blocks.0.attn.{name}.weight'] for name in ('q', 'kv'))
    assert torch.equal(torch.cat((q, kv)), theirs['layers.0.blocks.0.attn.qkv.weight'])
    assert (q.shape, kv.shape) == ((16, 16), (32, 16))
    assert torch.equal(ours['stages.3.blocks.0.attn.qkv.bias'], theirs['layers.3.blocks.0.attn.qkv.bias'])
    lacking = {name: value for name, value in ours.items() if name != 'stages.0.blocks.0.attn.kv.bias'}
    assert 'layers.0.blocks.0.attn.q.bias' in INLINE['InLine-Swin'].to_published(lacking)  # for loading to report


@pytest.mark.parametrize('title', INLINE)
def test_architectures_are_read_from_our_weights(title):
    family = INLINE[title]
    for name, arch in family.archs.items():
        with torch.device('meta'):
            weights = family.classifier(name, num_classes=5).state_dict()
        read = read_architecture(weights)
        assert (read.name, read.arch, read.num_classes) == (name, arch, 5)
    backbone = family.backbone(SMALL[title], in_channels=4)
    read = read_architecture(backbone.state_dict())
    assert (read.name, read.arch, read.num_classes) == (None, backbone.arch, None)
    assert read.options['in_channels'] == 4
    assert {n: v.shape for n, v in read.build().state_dict().items()} == {
        n: v.shape for n, v in backbone.state_dict().items()
    }


def test_options_that_shapes_show():
    def options(model):
        return read_architecture(model.state_dict()).options

    pvt = INLINE['InLine-PVT'].backbone
    assert options(pvt(SMALL['InLine-PVT'], mlp_ratios=(4, 2, 4, 1)))['mlp_ratios'] == (4, 2, 4, 1)
    assert options(pvt(SMALL['InLine-PVT'], img_size=(96, 130)))['img_size'] == (96, 132)
    assert options(InLineSwin(SMALL['InLine-Swin'], window_size=12))['window_size'] == 12
    assert 'img_size' not in options(InLineSwin(SMALL['InLine-Swin']))
    assert 'window_size' not in options(InLineCSwin(SMALL['InLine-CSwin'], window_size=12))
    assert options(InLineDeiT(PLAIN, img_size=(64, 100)))['img_size'] == (64, 112)


@pytest.mark.parametrize('title', INLINE)
def test_every_model_takes_what_the_others_of_its_family_hold(title):
    """The authors' file, a classifier's and a detector's, into a backbone and back into a classifier."""
    family = INLINE[title]
    classifier = from_published(dict(model=published(title)))
    backbone = read_architecture(classifier.state_dict())._replace(num_classes=None).build()
    report = load_pretrained(backbone, dict(model=published(title), epoch=3))
    assert report.complete
    assert report.left_aside == ['head.weight', 'head.bias']
    assert all(name.startswith('pyramid.levels.') for name in report.fresh)
    assert bool(report.fresh) == (title == 'InLine-DeiT')
    detector = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    again = read_architecture(classifier.state_dict()).build(num_classes=7)
    report = load_pretrained(again, detector | {'neck.bias': torch.ones(1)}, new_head='differ')
    assert report.complete
    assert report.fresh == ['head.weight', 'head.bias']
    assert bool(report.left_aside) == (title == 'InLine-DeiT')
    assert all(name.startswith('pyramid.levels.') for name in report.left_aside)
    assert load_pretrained(read_architecture(backbone.state_dict()).build(), detector).fresh == []
    narrower = family.backbone(**read_architecture(classifier.state_dict()).options, out_indices=(1, 2))
    assert load_pretrained(narrower, detector).complete
    state = classifier.state_dict()
    for model in (again, narrower):
        kept = {name: value for name, value in model.state_dict().items() if name.split('.')[0] in ('stages', 'blocks')}
        assert kept
        assert all(torch.equal(value, state[name]) for name, value in kept.items())
    wrapped = torch.nn.Module()
    wrapped.backbone = again
    assert all(name.startswith('backbone.') for name in names_for(wrapped, dict(model=published(title))))


@pytest.mark.parametrize('title', INLINE)
def test_overrides(title):
    theirs = published(title)
    model = from_published(theirs, num_classes=3, drop_path_rate=0.3, kernel='relu', img_size=160)
    assert (model.num_classes, model.kernel, model.training) == (3, 'relu', False)
    with torch.no_grad():
        assert model(torch.randn(1, 3, 160, 160)).shape == (1, 3)
    headless = {name: value for name, value in theirs.items() if not name.startswith('head')}
    assert from_published(headless).num_classes == 1000
    with pytest.raises(TypeError, match="has no option 'attn'"):
        from_published(theirs, attn='soft')


def test_buffers_that_a_model_computes_are_ignored():
    extra = {
        'layers.3.blocks.0.attn.relative_position_index': torch.zeros(49, 49, dtype=torch.long),
        'layers.1.blocks.1.attn_mask': torch.zeros(4, 49, 49),
    }
    assert load(dict(model=published('InLine-Swin') | extra)).keys() == load(published('InLine-Swin')).keys()


@pytest.mark.parametrize('title', INLINE)
def test_conversion_there_and_back(title, tmp_path):
    theirs = published(title)
    torch.save(dict(model=theirs), tmp_path / 'theirs.pth')
    said = convert(tmp_path / 'theirs.pth', tmp_path / 'ours.safetensors')
    rows = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert rows['direction'] == "the authors' names -> ours"
    assert rows['model'].startswith(f'a classifier, {title}; of its options kernel ')
    assert rows['classes'] == '10'
    convert(tmp_path / 'ours.safetensors', tmp_path / 'back.pth')
    assert same(torch.load(tmp_path / 'back.pth', weights_only=True), theirs)
    convert(tmp_path / 'theirs.pth', tmp_path / 'backbone.pth', part='backbone')
    backbone = load(tmp_path / 'backbone.pth')
    assert 'head.weight' not in backbone
    assert ('cls_token' in backbone) == (title == 'InLine-DeiT')  # which a plain backbone needs as well
    with pytest.raises(CheckpointError, match='--part classifier: the weights have no head;'):
        convert(tmp_path / 'backbone.pth', tmp_path / 'x.pth', part='classifier')


def test_what_weights_do_not_show_is_said(tmp_path):
    """CSwin's stripes leave no trace: the table says what is taken, and the option takes another width."""
    model = InLineCSwinClassifier(SMALL['InLine-CSwin'], num_classes=5, window_size=3).eval()
    torch.save(model.state_dict(), tmp_path / 'ours.pth')
    told = convert(tmp_path / 'ours.pth', tmp_path / 'theirs.pth')
    assert "kernel ('identity' unless given) and window_size (7 unless given) leave no trace" in told
    x = torch.randn(1, 3, 96, 96)
    assert relative_error(from_published(tmp_path / 'theirs.pth', window_size=3)(x), model(x)) < 1e-6
    assert relative_error(from_published(tmp_path / 'theirs.pth')(x), model(x)) > 1e-4


def test_a_pyramid_has_no_place_in_the_authors_files(tmp_path):
    model = InLineDeiT(PLAIN)
    torch.save({f'backbone.{name}': value for name, value in model.state_dict().items()}, tmp_path / 'det.pth')
    count = sum(name.startswith('pyramid.') for name in model.state_dict())
    assert f'{count} tensors outside of the authors' in convert(tmp_path / 'det.pth', tmp_path / 'theirs.pth')
    theirs = torch.load(tmp_path / 'theirs.pth', weights_only=True)
    assert not any(name.startswith('pyramid') for name in theirs)
    assert published_family(theirs).title == 'InLine-DeiT'


def test_mistakes_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r'residual\.0\.weight of InLine-PVT, .*first name is .conv1\.weight'):
        from_published({'conv1.weight': torch.zeros(1)})
    with pytest.raises(CheckpointError, match=r'of any known model: SOFT \(stages\.0\.embed\.0\.0\.weight, \.\.\.\)'):
        read_architecture({'conv1.weight': torch.zeros(1)})
    swin = published('InLine-Swin')
    lacking = {name: value for name, value in swin.items() if not name.startswith('layers.2.blocks.0')}
    with pytest.raises(CheckpointError, match=r"lack 'stages\.2\.blocks\.0.*of a whole InLine-Swin backbone"):
        from_published(lacking)
    flat = swin | {'layers.3.blocks.0.attn.relative_position_bias_table': torch.zeros(169)}
    with pytest.raises(CheckpointError, match='tensors of other dimensions than those'):
        from_published(flat)
    with pytest.raises(CheckpointError, match=r'do not fit InLineSwinClassifier(.|\n)*relative_position_bias_table'):
        from_published(swin, window_size=12)
    with pytest.raises(CheckpointError, match=r'missing +1 [^\n]+\n +stages\.0\.blocks\.0\.attn\.proj\.bias'):
        from_published({name: value for name, value in swin.items() if name != 'layers.0.blocks.0.attn.proj.bias'})
    with pytest.raises(CheckpointError, match='do not fit InLineSwinClassifier'):
        load_pretrained(InLineSwinClassifier(SMALL['InLine-Swin'], num_classes=10), published('InLine-CSwin'))
    mixed = swin | {'stages.0.blocks.0.norm1.weight': torch.ones(16)}
    torch.save(mixed, tmp_path / 'mixed.pth')
    with pytest.raises(CheckpointError, match=r'mixed\.pth. do not translate back'):
        convert(tmp_path / 'mixed.pth', tmp_path / 'x.pth')
    heads = {name: value for name, value in published('InLine-CSwin').items() if 'residual' not in name}
    with pytest.raises(CheckpointError, match=r"lack 'stages\.0\.blocks\.0\.attn\.branches\.0\.predictor"):
        from_published(heads)


@pytest.mark.parametrize('title', INLINE)
def test_a_linear_probe_freezes_all_but_the_head(title, monkeypatch):
    monkeypatch.setattr(config, 'class_count', lambda dataset: 5)
    cfg = config.load_config(mmsoft.config_path(f'{title.lower().replace("-", "_")}_tiny_300e_in1k'))
    narrow_model(cfg.model)
    config.start_from(cfg, 'x.pth', only_head=True)
    model = REGISTRY.build(cfg.model).train()
    assert {n for n, p in model.named_parameters() if p.requires_grad} == {'backbone.head.weight', 'backbone.head.bias'}
    assert model.backbone.num_classes == 5


@pytest.mark.parametrize('title', INLINE)
def test_publication_describes_the_model(title, tmp_path):
    family = INLINE[title]
    model = family.classifier(SMALL[title], num_classes=4, img_size=64)
    written = f"model = dict(type='mmsoft.ImageClassifier', backbone=dict(type='mmsoft.{family.classifier.__name__}'))"
    weights = {f'backbone.{name}': value for name, value in model.state_dict().items()}
    torch.save(dict(state_dict=weights, meta=dict(cfg=written, experiment_name='net')), tmp_path / 'epoch_1.pth')
    publish(tmp_path / 'epoch_1.pth', part='backbone', out_dir=tmp_path / 'out')
    card = json.loads((tmp_path / 'out' / 'net.json').read_text())['architecture']
    assert (card['family'], card['model'], card['kernel']) == (title, 'mmsoft.ImageClassifier', 'identity')
    assert (card['dims'], card['num_classes']) == (list(SMALL[title]['dims']), None)
    (file,) = (tmp_path / 'out').glob('*.safetensors')
    assert our_family(load(file)) is family
    torch.save({'conv1.weight': torch.zeros(1)}, tmp_path / 'other.pth')
    with pytest.raises(CheckpointError, match=r"--part backbone: .*other\.pth' holds no backbone of ours"):
        publish(tmp_path / 'other.pth', part='backbone')


def test_a_classifier_is_tested_with_tables_as_large_as_its_weights():
    def size_for(model):
        cfg = Config(dict(model=dict(type='mmsoft.ImageClassifier', backbone=dict(type='x', img_size=224))))
        found = config.model_for(cfg, {f'backbone.{name}': value for name, value in model.state_dict().items()})
        assert cfg.model.backbone.img_size == 224  # the config is as it was
        return found.backbone.img_size

    assert size_for(InLineDeiTClassifier(PLAIN, img_size=(64, 96))) == [64, 96]
    assert size_for(INLINE['InLine-PVT'].classifier(SMALL['InLine-PVT'], img_size=64)) == [64, 64]
    assert size_for(SOFTClassifier(SMALL['InLine-PVT'], img_size=128)) == [128, 128]
    assert size_for(SOFTClassifier(SMALL['InLine-PVT'], img_size=128, attn='inline', pyramid=False)) == [128, 128]
    assert size_for(InLineSwinClassifier(SMALL['InLine-Swin'], img_size=64)) == 224


def test_the_authors_files_are_tested_as_they_are(tmp_path):
    """The same metrics as from ours, with tables of another size than the config's, and a detector starts from both."""
    cfg = small_config('classifier', tmp_path / 'data', train=6)
    cfg.model.backbone = dict(type='mmsoft.InLineDeiTClassifier', arch=PLAIN, num_classes=6, img_size=224)
    path = dump(cfg, tmp_path)
    model = InLineDeiTClassifier(PLAIN, num_classes=6, img_size=64)
    torch.save(model.state_dict(), tmp_path / 'ours.pth')
    convert(tmp_path / 'ours.pth', tmp_path / 'theirs.pth')
    torch.save(dict(model=torch.load(tmp_path / 'theirs.pth', weights_only=True)), tmp_path / 'wrapped.pth')
    metrics = [
        evaluate(config.load_config(path), str(tmp_path / f'{name}.pth'), work_dir=str(tmp_path / name))
        for name in ('ours', 'theirs', 'wrapped')
    ]
    assert metrics[0] == metrics[1] == metrics[2]
    assert set(metrics[0]) == {'accuracy/top1', 'accuracy/top5'}
    assert Config.fromfile(tmp_path / 'ours' / 'small.py').model.backbone.img_size == 224  # as it was written
    backbone = InLineDeiT(PLAIN, init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'theirs.pth')))
    backbone.init_weights()
    assert torch.equal(backbone.norm.weight, model.norm.weight)
