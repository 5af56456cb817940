"""MILA and RAVLT against the authors' outputs and a float64 reference of their own; their weights on the way."""

from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from frontier_reference import frontier_reference
from helpers import ROOT, Golden, relative_error

from mmsoft import models
from mmsoft.checkpoints import Checkpoint, CheckpointError, convert, from_published, load, read_architecture
from mmsoft.engine.complexity import count_macs
from mmsoft.models.family import FAMILIES, our_family, published_family

TITLES = ('MILA', 'RAVLT')
each = pytest.mark.parametrize('title', TITLES)
SMALL = {
    'MILA': dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 2, 1, 1)),  # of three heads one turns both ways
    'RAVLT': dict(
        dims=(4, 16, 32, 48), heads=(1, 1, 2, 3), depths=(1, 2, 1, 1), projection=20
    ),  # heads from 4 channels
}


class Authors:
    """What their code made of a small network: weights of the classifier and of the dense variant, heads, outputs."""

    def __init__(self, title):
        golden = Golden(title.lower())
        self.inputs, outputs = golden.inputs, golden.outputs
        own = {name.removeprefix('sd_dense/'): x for name, x in outputs.items() if name.startswith('sd_dense/')}
        heads = {'MILA': ('head.', 'norm.'), 'RAVLT': ('head.', 'proj.', 'norm.')}[title]
        self.classifier = golden.weights
        self.dense = {name: x for name, x in golden.weights.items() if not name.startswith(heads)} | own
        self.heads, self.outputs = tuple(map(int, outputs['meta/heads'])), outputs
        self.options = dict(num_heads=self.heads) if title == 'MILA' else {}


@pytest.fixture(scope='module')
def authors():
    return {title: Authors(title) for title in TITLES}


def family_of(title):
    return FAMILIES[title]


def check(found, authors, size, kind, tolerance):
    for i, x in enumerate(found, start=1):
        assert relative_error(x[:, :, ::3, ::3], authors.outputs[f'{kind}{i}/{size}']) < tolerance, (kind, i, size)


@each
def test_the_reference_meets_the_authors_outputs(title, authors):
    authors = authors[title]
    size = min(authors.inputs, key=lambda size: authors.inputs[size].numel())
    image = authors.inputs[size]
    _, maps, dense = frontier_reference(title.lower(), authors.dense, image, authors.heads)
    check(maps, authors, size, 'stage', 1e-5)
    check(dense, authors, size, 'dense', 1e-5)


@each
def test_authors_outputs_are_met(title, authors):
    authors = authors[title]
    classifier = from_published(dict(model=authors.classifier), **authors.options)
    backbone = from_published(dict(state_dict=authors.dense), **authors.options)
    assert type(classifier) is family_of(title).classifier
    assert type(backbone) is family_of(title).backbone
    assert (classifier.training, backbone.training) == (False, False)
    assert classifier.arch.heads == backbone.arch.heads == authors.heads
    assert len(authors.inputs) == (3 if title == 'MILA' else 2)
    with torch.no_grad():
        for size, image in authors.inputs.items():
            check(classifier.forward_intermediates(image, intermediates_only=True), authors, size, 'stage', 1e-5)
            check(backbone(image), authors, size, 'dense', 1e-5)
            if size != '100x148':  # where the authors' classifier of MILA takes no image
                assert relative_error(classifier(image), authors.outputs[f'logits/{size}']) < 1e-5


def randomised(model):
    """Every weight and statistic at random, so large that each of them shows in the outputs."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name.endswith('running_var'):
                value.uniform_(0.5, 2)
            elif name.endswith(('angle', 'tracked')):
                continue
            elif value.dim() > 1 and name.endswith('weight'):
                value.normal_(std=value[0].numel() ** -0.5)
            elif name.endswith('weight') or '.gamma_' in name:
                value.normal_(1, 0.3)
            else:
                value.normal_(std=0.5)
    return model


@pytest.mark.parametrize(('title', 'linear'), [('MILA', False), ('RAVLT', False), ('RAVLT', True)])
@pytest.mark.parametrize('size', [(32, 40), (97, 65), (130, 86)], ids=str)  # one pixel at the end; odd; odd maps
def test_own_reference_is_met(title, linear, size):
    """With the whole of each network's weights at random, two images at a time; outputs and gradients."""
    family, options = family_of(title), dict(linear=True) if linear else {}
    classifier = randomised(family.classifier(SMALL[title], num_classes=5, **options)).eval()
    backbone = randomised(family.backbone(SMALL[title], **options)).eval()
    backbone.load_state_dict(classifier.state_dict(), strict=False)
    images = torch.randn(2, 3, *size, requires_grad=True)
    with torch.no_grad():
        images[1] *= 5
    heads = SMALL[title]['heads']
    theirs = family.to_published(classifier.state_dict())
    theirs = {name: x.double().requires_grad_() for name, x in theirs.items() if x.is_floating_point()}
    wide = images.detach().double().requires_grad_()
    logits, _, _ = frontier_reference(title.lower(), theirs, wide, heads, linear)
    found = classifier(images)
    assert relative_error(found, logits) < 2e-5
    weight = torch.randn_like(logits)
    (found * weight).sum().backward()
    (logits * weight).sum().backward()
    assert relative_error(images.grad, wide.grad) < 1e-4
    for name, parameter in family.to_published({n: p.grad for n, p in classifier.named_parameters()}).items():
        assert (parameter - theirs[name].grad).abs().max() <= 1e-4 * max(theirs[name].grad.abs().max(), 1e-3), name
    dense = frontier_reference(title.lower(), family.to_published(backbone.state_dict()), wide, heads, linear)[2]
    with torch.no_grad():  # what runs without gradients may be computed in another way
        assert relative_error(classifier(images), logits) < 2e-5
        for y, expected in zip(backbone(images), dense, strict=True):
            assert relative_error(y, expected) < 2e-5


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@each
def test_names_go_both_ways_exactly(title, authors):
    """And no other family takes these for its own."""
    family = family_of(title)
    for theirs in (authors[title].classifier, authors[title].dense):
        ours = family.to_ours(theirs)
        assert same(family.to_published(ours), theirs)
        assert [f.title for f in FAMILIES.values() if f.is_published(theirs)] == [title]
        assert [f.title for f in FAMILIES.values() if f.is_ours(ours)] == [title]
    for build in (family.classifier, family.backbone):
        with torch.device('meta'):
            weights = build('tiny').state_dict()
        theirs = family.to_published(weights)
        counts = dict(MILA=517, RAVLT=302)  # with BatchNorms' counters, without MILA's rotations
        if build is family.classifier:
            rotations = sum(FAMILIES['MILA'].archs['tiny'].depths) if title == 'MILA' else 0
            assert len(theirs) == counts[title] - rotations
        back = family.to_ours(theirs)
        assert {n: x.shape for n, x in back.items()} == {n: x.shape for n, x in weights.items()}


@each
def test_architectures_are_read(title):
    family = family_of(title)
    for name, arch in family.archs.items():
        with torch.device('meta'):
            weights = family.classifier(name, num_classes=5).state_dict()
            read = read_architecture(family.to_ours(family.to_published(weights)))
            assert (read.name, read.arch, read.num_classes) == (name, arch, 5)
            assert read.build().arch == arch
    if title == 'RAVLT':
        backbone = family.backbone(SMALL[title], in_channels=4)
        read = read_architecture(backbone.state_dict())
        assert read.arch == backbone.arch._replace(projection=1024)
        assert (read.options['in_channels'], read.arch.heads) == (4, (1, 1, 2, 3))


def test_heads_are_as_wide_as_the_authors_have_them():
    """Counts of parameters do not show them, and detectors' configs name the arch alone."""
    widths = {
        title: {
            name: tuple(map(int.__floordiv__, arch.dims, arch.heads)) for name, arch in family_of(title).archs.items()
        }
        for title in TITLES
    }
    assert widths['MILA'] == dict.fromkeys(('tiny', 'small', 'base'), (32,) * 4)
    assert widths['RAVLT'] == dict(tiny=(64,) * 4, small=(64,) * 4, base=(96, 96, 64, 64), large=(96, 96, 64, 64))


def files(title, authors, tmp_path):
    """Forms in which the authors' files come, each with other weights where a reader must not look."""
    wrong = {name: torch.zeros_like(x) for name, x in authors.classifier.items()}
    inner = {f'backbone.{name}': x for name, x in authors.dense.items()} | {'neck.weight': torch.ones(2)}
    extra = {f'layers.{i}.blocks.0.attn.rope.rotations': torch.ones(7, 7, 4, 2) for i in range(4)}
    extra['patch_embed.conv1.norm.num_batches_tracked'] = torch.tensor(3)
    extra = extra if title == 'MILA' else {'norm.num_batches_tracked': torch.tensor(3)}
    forms = dict(
        bare=authors.classifier | extra,
        trainer=dict(model=authors.classifier, optimizer=dict(state={}), epoch=3, args=Namespace(lr=1e-3)),
        averaged=dict(model=wrong, args=Namespace(lr=1e-3))
        | {'state_dict_ema' if title == 'MILA' else 'model_ema': authors.classifier},
        parallel={f'module.{name}': x for name, x in authors.classifier.items()},
        dense=dict(state_dict=authors.dense),
        detector=dict(state_dict=inner, meta=dict(epoch=12, config='x = 1')),
    )
    for name, content in forms.items():
        torch.save(content, tmp_path / f'{name}.pth')
    return {name: tmp_path / f'{name}.pth' for name in forms}


@each
def test_every_form_of_file_loads(title, authors, tmp_path):
    """Into what it is of, into backbones, and into classifiers with a new head."""
    authors, family = authors[title], family_of(title)
    image = authors.inputs['160x160' if title == 'MILA' else '160x208']
    exact = from_published(authors.classifier, **authors.options)
    backbone = from_published(authors.dense, **authors.options)
    arch = exact.arch
    for name, path in files(title, authors, tmp_path).items():
        dense = name in ('dense', 'detector')
        model = from_published(path, **authors.options)
        assert type(model) is (family.backbone if dense else family.classifier), name
        with torch.no_grad():
            outputs = [m(image)[-1] for m in (model, backbone if dense else exact)]
        assert torch.equal(*outputs), name
        again = family.backbone(arch, init_cfg=dict(type='Pretrained', checkpoint=str(path)))
        again.init_weights()
        assert torch.equal(again.stages[0].blocks[0].norm1.weight, exact.stages[0].blocks[0].norm1.weight)
        norms = again.pyramid.levels['0'].weight
        assert torch.equal(norms, backbone.pyramid.levels['0'].weight if dense else torch.ones_like(norms))
        part = family.backbone(arch, out_indices=(1, 2))
        assert Checkpoint.open(path).load_into(part).complete
        classifier = family.classifier(arch, num_classes=3)
        report = Checkpoint.open(path).load_into(classifier, new_head='differ')
        assert report.complete
        assert {n.split('.')[0] for n in report.fresh} == ({*family.head} if dense else {'head'})
        assert from_published(path, num_classes=7, **authors.options).num_classes == 7
        assert type(from_published(path, num_classes=7, **authors.options)) is family.classifier


def test_a_yacs_node_is_read_without_running_anything(authors, tmp_path):
    """Which is a dict of a class of its own."""
    import sys

    module = SimpleNamespace()
    CfgNode = type('CfgNode', (dict,), dict(__module__='yacs.config'))
    module.CfgNode = CfgNode
    sys.modules['yacs'] = sys.modules['yacs.config'] = module
    try:
        node = CfgNode(TRAIN=CfgNode(EPOCHS=300))
        node.__dict__['__immutable__'] = True
        torch.save(dict(model=authors['MILA'].classifier, config=node), tmp_path / 'yacs.pth')
    finally:
        del sys.modules['yacs'], sys.modules['yacs.config']
    assert same(load(tmp_path / 'yacs.pth'), load(authors['MILA'].classifier))
    assert 'yacs' not in sys.modules


@each
def test_conversion_there_and_back(title, authors, tmp_path):
    for name, theirs in dict(classifier=authors[title].classifier, dense=authors[title].dense).items():
        torch.save(dict(model=theirs), tmp_path / f'{name}.pth')
        said = convert(tmp_path / f'{name}.pth', tmp_path / f'{name}.safetensors')
        rows = dict(line.split(maxsplit=1) for line in said.splitlines())
        unseen = 'num_heads (' if title == 'MILA' else 'linear ('
        kind = 'classifier' if name == 'classifier' else 'backbone'
        assert rows['model'].startswith(f'a {kind}, {title}; of its options {unseen}')
        convert(tmp_path / f'{name}.safetensors', tmp_path / 'back.pth', force=True)
        assert same(torch.load(tmp_path / 'back.pth', weights_only=True), theirs)
    ours = {f'backbone.{n}': x for n, x in load(tmp_path / 'dense.safetensors').items()}
    torch.save(ours | {'neck.bias': torch.ones(2)}, tmp_path / 'detector.pth')
    assert '1 tensors outside of the authors' in convert(tmp_path / 'detector.pth', tmp_path / 'theirs.pth')
    assert same(torch.load(tmp_path / 'theirs.pth', weights_only=True), authors[title].dense)
    convert(tmp_path / 'classifier.pth', tmp_path / 'part.pth', part='backbone')
    assert not any(name.startswith('head') for name in load(tmp_path / 'part.pth'))
    with pytest.raises(CheckpointError, match='--part classifier: the weights have no head_'):
        convert(tmp_path / 'dense.pth', tmp_path / 'x.pth', part='classifier')


def test_heads_that_weights_do_not_show(authors):
    mila = authors['MILA']
    assert from_published(mila.classifier).arch.heads == (1, 1, 2, 4)  # of 32 channels, or all there are
    other = from_published(mila.classifier)(mila.inputs['160x160'])
    assert relative_error(other, mila.outputs['logits/160x160']) > 1e-2
    for wrong, message in (
        ((2, 2, 4), 'num_heads must be positive integers, one for each stage'),
        ((2, 2, 4, 5), r'arch stage 4: dims \(128\) must be a multiple of heads \(5\)'),
        ((16, 2, 4, 4), r'dim \(16\) must be a multiple of 4, and of 2 num_heads \(16\)'),
    ):
        with pytest.raises(ValueError, match=message):
            from_published(mila.classifier, num_heads=wrong)
    ravlt = authors['RAVLT']
    with pytest.raises(CheckpointError, match=r'position\.angle'):
        Checkpoint.open(ravlt.dense).load_into(
            models.RAVLT(dict(dims=(16, 32, 48, 64), heads=(2, 2, 3, 4), depths=(1, 2, 2, 1)))
        )
    with pytest.raises(ValueError, match=r'dim \(16\) must be a multiple of 4 num_heads \(8\)'):
        models.RAVLT(dict(dims=(16, 32, 48, 64), heads=(8, 2, 3, 4), depths=(1, 1, 1, 1)))


def test_scales_start_as_the_paper_says(monkeypatch):
    monkeypatch.setattr(torch.nn.init, 'trunc_normal_', lambda weight, **options: weight)  # slow, and of others
    with torch.device('meta'):
        blocks = [stage.blocks[0] for stage in models.RAVLT('tiny').stages]
    assert all(block.gamma_1.shape == (1, 1, block.norm1.normalized_shape[0]) for block in blocks)
    for arch, scales in dict(base=(1, 1, 1e-6, 1e-6), large=(1e-6, 1e-6, 1e-6, 1e-6)).items():
        for stage, scale in zip(models.RAVLT(arch).stages, scales, strict=True):
            for block in stage.blocks:
                assert block.gamma_1.unique().tolist() == block.gamma_2.unique().tolist() == [pytest.approx(scale)]


def test_convolutions_start_as_the_authors_do():
    """Of RAVLT as linear layers do, with a std of 0.02; of MILA as torch has them."""
    for module in models.RAVLT('tiny').modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.numel() > 1000:
            assert module.weight.std().item() == pytest.approx(0.02, rel=0.15)
            assert module.bias.count_nonzero() == 0
    conv = models.MILA('tiny', out_indices=(0,)).stages[0].blocks[0].dwc
    assert conv.weight.std().item() == pytest.approx(1 / 3 / 3**0.5, rel=0.15)  # uniform up to 1 / 3
    assert conv.bias.count_nonzero() > 0


@each
def test_linear_layers_start_as_the_authors_do(title):
    layers = [m for m in family_of(title).classifier('tiny').modules() if isinstance(m, torch.nn.Linear)]
    assert {layer.out_features for layer in layers} >= {1000, *([1024] if title == 'RAVLT' else [])}
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.02, rel=0.05)
        assert layer.bias.count_nonzero() == 0


@each
def test_norm_eval_holds_from_the_start(title):
    """Also of a head's BatchNorm, which is made last."""
    for build in (family_of(title).classifier, family_of(title).backbone):
        norms = [m for m in build(SMALL[title], norm_eval=True).modules() if 'BatchNorm' in type(m).__name__]
        assert len(norms) >= 4
        assert not any(norm.training for norm in norms)


@each
def test_norms_add_what_the_authors_add(title):
    """Of maps and tokens of ordinary size no output shows it."""
    for build in (family_of(title).classifier, family_of(title).backbone):
        norms = [m for m in build(SMALL[title]).modules() if isinstance(m, torch.nn.LayerNorm)]
        assert len(norms) >= 2 * sum(SMALL[title]['depths'])
        assert {norm.eps for norm in norms} == {dict(MILA=1e-5, RAVLT=1e-6)[title]}


@each
def test_angles_are_float32_under_half(title):
    """Far from the origin bfloat16 cannot tell positions apart; what is computed does not change with the cast."""
    model = family_of(title).backbone(SMALL[title], out_indices=(0,)).eval()
    attention, grid = model.stages[0].blocks[0].attn, (2, 700)
    x = torch.randn(1, 1400, attention.lepe.weight.shape[0])
    with torch.no_grad():
        expected = attention(x, grid)
        found = attention.bfloat16()(x.bfloat16(), grid)
    errors = (found.float() - expected).square().mean(2)[0].view(grid)
    assert errors[:, 600:].mean() < 1.5 * errors[:, :100].mean()
    assert (errors.mean() / expected.square().mean()).sqrt() < 0.02


@pytest.mark.parametrize(('title', 'options'), [('MILA', {}), ('RAVLT', {}), ('RAVLT', dict(linear=True))], ids=str)
def test_very_negative_queries_are_finite_in_float16(title, options):
    model = family_of(title).backbone(SMALL[title], **options).half().eval()
    for layer in (stage.blocks[0].attn for stage in model.stages):
        projection = layer.qk if title == 'MILA' else layer.qkvo
        x = torch.randn(1, 35, projection.in_features).half()
        for value in (-9, -30, -90, -200, 2e4):
            torch.nn.init.constant_(projection.bias[: projection.in_features], value)
            with torch.no_grad():
                assert layer(x, (5, 7)).isfinite().all(), value


@each
def test_no_buffer_depends_on_the_size(title):
    model = family_of(title).backbone(SMALL[title]).eval()
    before = {name: value.shape for name, value in model.state_dict().items()}
    with torch.no_grad():
        model(torch.randn(1, 3, 70, 90))
        model(torch.randn(1, 3, 33, 41))
    assert {name: value.shape for name, value in model.state_dict().items()} == before
    buffers = {name for name, _ in model.named_buffers() if not name.endswith(('mean', 'var', 'tracked'))}
    assert {name.rpartition('.')[2] for name in buffers} <= {'angle'}
    with torch.device('meta'):
        small, large = (family_of(title).backbone('tiny', img_size=size).state_dict() for size in (224, 1333))
    assert {n: x.shape for n, x in small.items()} == {n: x.shape for n, x in large.items()}


def test_files_that_are_not_theirs(authors):
    with pytest.raises(CheckpointError, match=r'qk\.weight of MILA, .*qkvo\.weight of RAVLT'):
        from_published({'conv1.weight': torch.zeros(1)})
    ours = from_published(authors['RAVLT'].classifier).state_dict()
    assert our_family(ours).title == 'RAVLT'
    assert published_family(ours) is None
    lacking = {n: x for n, x in authors['RAVLT'].classifier.items() if 'RoPE' not in n}
    with pytest.raises(CheckpointError, match=r"lack 'stages\.0\.position\.angle'"):
        from_published(lacking)


def multiply_adds():
    """Rows of the table in docs/mila_ravlt.md."""
    for title, options in (('MILA', {}), ('RAVLT', {}), ('RAVLT', dict(linear=True))):
        for arch in family_of(title).archs:
            with torch.device('meta'):
                backbone = family_of(title).backbone(arch, **options)
            small, large = (count_macs(backbone, 1, 3, *size) / 1e9 for size in ((800, 1344), (1600, 2688)))
            name = f"mmsoft.{title}('{arch}'{', linear=True' if options else ''})"
            yield f'| `{name}` | {small:.1f} | {large:.1f} | {large / small:.2f} |'


def test_the_docs_say_what_is_linear():
    text, rows = (ROOT / 'docs' / 'mila_ravlt.md').read_text(), [*multiply_adds()]
    assert len(rows) == 11
    assert '\n'.join(rows) in text
