"""What holds for every registered model: sizes, training, precision, compilation, options, timm's contract."""

import inspect
import re
import sys

import pytest
import torch
from backbones import CASES, Case, exported_for_any_batch
from helpers import INDUCTOR, relative_error
from torch import nn

import mmsoft.timm
from mmsoft.engine.complexity import count_macs
from mmsoft.layers import Mlp
from mmsoft.models import FAMILIES
from mmsoft.models.options import options_of

every = pytest.mark.parametrize('case', CASES.values(), ids=CASES.keys())
# Million parameters of the classifier (1000 classes) and of the backbone (DeiT's has a pyramid besides).
PARAMETERS = {
    'InLinePVT': dict(
        tiny=(12.032232, 11.519232),
        small=(21.556136, 21.043136),
        medium=(37.618856, 37.105856),
        large=(51.154280, 50.641280),
    ),
    'InLineSwin': dict(tiny=(29.223544, 28.454544), small=(49.793296, 49.024296), base=(88.350120, 87.325120)),
    'InLineDeiT': dict(tiny=(6.477736, 6.451056), small=(16.734760, 16.875280), base=(23.797096, 24.076512)),
    'InLineCSwin': dict(tiny=(20.604520, 20.091520), small=(33.032872, 32.519872), base=(73.413640, 72.644640)),
    'MILA': dict(tiny=(24.392200, 23.880096), small=(43.015048, 42.502944), base=(95.983960, 95.216304)),
    'RAVLT': dict(
        tiny=(14.897768, 13.347328),
        small=(25.591208, 24.040896),
        base=(48.241288, 46.691296),
        large=(95.242440, 93.561760),
    ),
}


def sizes_of(height, width):
    return [(-(-height // s), -(-width // s)) for s in (4, 8, 16, 32)]


def layers(model):
    return [block for stage in getattr(model, 'stages', [model]) for block in stage.blocks]


def test_every_registered_model_is_a_case():
    assert {case.backbone for case in CASES.values()} == {family.backbone for family in FAMILIES.values()}
    assert {case.classifier for case in CASES.values()} == {family.classifier for family in FAMILIES.values()}
    assert {case.name for case in CASES.values()} <= {*mmsoft.timm.VARIANTS}


@pytest.mark.parametrize(('family', 'arch'), [(f, a) for f, archs in PARAMETERS.items() for a in archs])
def test_parameter_counts_are_pinned(family, arch):
    case = next(case for case in CASES.values() if case.family == family)
    (archs,) = (known.archs for known in FAMILIES.values() if known.backbone is case.backbone)
    assert set(archs) == set(PARAMETERS[family])
    with torch.device('meta'):
        classifier, backbone = case.classifier(arch), case.backbone(arch)
    counts = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (classifier, backbone)]
    assert counts == pytest.approx(PARAMETERS[family][arch], abs=1e-6)


@pytest.mark.parametrize(
    ('name', 'growth'),
    # windows fill up what they pad; the stripes of CSwin's softmax layers are as long as the map
    [
        ('soft_pp', 1),
        ('inline_pvt', 1),
        ('inline_deit', 1),
        ('inline_swin', 1),
        ('inline_cswin', 1.34),
        ('mila', 1),
        ('ravlt_linear', 1),
        ('ravlt', 4.4),  # softmax over all tokens in the last two stages
    ],
)
def test_multiply_adds_a_pixel_do_not_grow(name, growth):
    with torch.device('meta'):
        model = CASES[name].backbone('tiny', **CASES[name].options)
        cost = {size: count_macs(model, 1, 3, *size) / (size[0] * size[1]) for size in [(448, 448), (1600, 2688)]}
    assert cost[1600, 2688] / cost[448, 448] == pytest.approx(growth, rel=0.02)


@every
@pytest.mark.parametrize('size', [(32, 32), (33, 65), (63, 32), (97, 161), (224, 224), (230, 415)])
def test_any_size(case, size):
    model = case.build().eval()
    with torch.no_grad():
        maps = model(torch.randn(2, 3, *size))
    assert [tuple(x.shape) for x in maps] == [
        (2, channels, *hw) for channels, hw in zip(case.channels, sizes_of(*size), strict=True)
    ]
    assert all(x.isfinite().all() and x.is_contiguous() for x in maps)
    assert model.channels == case.channels
    assert model.strides == (4, 8, 16, 32)


INLINE = [case for case in CASES.values() if case.family.startswith('InLine')]
FRONTIER = [CASES[name] for name in ('mila', 'ravlt', 'ravlt_linear')]
VARIANTS = [
    *((case, {}) for case in CASES.values()),
    *((case, dict(kernel='exp')) for case in INLINE),
    *((case, dict(kernel='relu', in_channels=5)) for case in INLINE[1::2]),
    *((case, dict(in_channels=5)) for case in FRONTIER[:2]),
    *(
        (CASES['soft_pp'], options)
        for options in (
            dict(newton_backward='closed'),
            dict(overlap=False),
            dict(num_landmarks=None),
            dict(landmark_sampling='avg_pool'),
            dict(landmark_sampling='random'),
            dict(landmark_sampling='first'),
            dict(in_channels=5),
        )
    ),
]


@pytest.mark.parametrize(('case', 'options'), VARIANTS, ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_every_parameter_gets_a_gradient_and_training_helps(case, options):
    torch.manual_seed(0)
    model = case.build(**options)
    x = torch.randn(2, options.get('in_channels', 3), 100, 130)
    targets = [torch.randn_like(y) for y in model(x)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for _ in range(8):
        loss = sum((y - t).square().mean() for y, t in zip(model(x), targets, strict=True))
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]


@every
def test_recomputation_is_chosen_for_every_mlp(case):
    for recompute in (None, True, False):
        mlps = [m for m in case.classify(recompute=recompute).modules() if isinstance(m, Mlp)]
        assert len(mlps) >= 3
        assert {mlp.recompute for mlp in mlps} == {recompute}


@every
def test_checkpointing_changes_nothing_but_memory(case):
    x = torch.randn(2, 3, 96, 64)
    depths = (2, 2, 3, 2)[: len(case.arch['depths'])] if len(case.arch['depths']) > 1 else (6,)
    arch = {key: value for key, value in case.arch.items() if key != 'inline'} | dict(depths=depths)
    options = dict(landmark_sampling='random') if case.has_landmarks else {}
    results = []
    for with_cp in (False, True):
        torch.manual_seed(3)
        model = case.build(arch=arch, with_cp=with_cp, drop_path_rate=0.3, **options)
        torch.manual_seed(4)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, saved=saved: saved.append(t.numel()) or t, lambda t: t):
            maps = model(x)
        loss = sum(y.square().mean() for y in maps)
        loss.backward()
        results.append((maps, [p.grad for p in model.parameters()], sum(saved)))
    (maps, grads, kept), (maps_cp, grads_cp, kept_cp) = results
    assert all(map(torch.equal, maps, maps_cp))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(grads, grads_cp, strict=True))
    assert kept_cp < 0.65 * kept


BATCHED = [*((case, {}) for case in CASES.values()), (CASES['soft_pp'], dict(landmark_sampling='random'))]


@pytest.mark.parametrize(('case', 'options'), BATCHED, ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_an_image_does_not_see_its_batch(case, options):
    # at full width SOFT's matrices are as ill-conditioned as they get
    model = case.build(**options, **(dict(arch='tiny') if case.family == 'SOFT' else {})).eval()
    images = torch.randn(5, 3, 320, 416) * torch.tensor([1.0, 1e-3, 1e3, 20.0, 1e-3]).view(5, 1, 1, 1)
    images[3] = 0.5  # a constant image, and a smooth one
    images[4] = 1e-3 * torch.linspace(-1, 1, 416) * torch.linspace(0, 1, 320)[:, None]
    with torch.no_grad():
        together = model(images)
        for i in range(5):
            for found, alone in zip(together, model(images[i : i + 1]), strict=True):
                assert relative_error(found[i : i + 1], alone) < 1e-5, i


@every
@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_half_precision_stays_finite(case, scale):
    model = case.build()
    x = scale * torch.randn(2, 3, 96, 96)
    with torch.autocast('cpu', dtype=torch.bfloat16):
        maps = model(x)
        sum(y.float().square().mean() for y in maps).backward()
    assert all(y.isfinite().all() for y in maps)
    assert all(p.grad.isfinite().all() for p in model.parameters())
    model.eval()
    with torch.no_grad():
        expected = model(x)
        with torch.autocast('cpu', dtype=torch.bfloat16):
            for found, y in zip(model(x), expected, strict=True):
                assert (found - y).abs().mean() / y.abs().mean() < 0.05
        for dtype in (torch.bfloat16, torch.float16):
            for y in case.build().to(dtype).eval()(x.to(dtype)):
                assert y.dtype == dtype
                assert y.isfinite().all()


@every
def test_weights_move_between_backbone_and_classifier(case, tmp_path):
    backbone, classifier, x = case.build().eval(), case.classify().eval(), torch.randn(1, 3, 64, 96)
    torch.save(backbone.state_dict(), tmp_path / 'weights.pth')
    again = case.build().eval()
    assert not torch.equal(again(x)[0], backbone(x)[0])
    again.load_state_dict(torch.load(tmp_path / 'weights.pth', weights_only=True))
    assert all(map(torch.equal, again(x), backbone(x)))
    names = [{*model.state_dict()} for model in (classifier, backbone)]
    heads, pyramid = ({name.split('.')[0] for name in own} for own in (names[0] - names[1], names[1] - names[0]))
    assert (heads, pyramid) == case.own_parts
    classifier.load_state_dict(backbone.state_dict(), False)
    (last,) = classifier.forward_intermediates(x, 1, norm=True, intermediates_only=True)
    if case.family == 'InLineDeiT':
        assert all(relative_error(a, b) < 1e-6 for a, b in zip(backbone.pyramid(last), backbone(x), strict=True))
    else:
        assert torch.equal(last, backbone(x)[-1])


@pytest.mark.slow
@every
def test_compile_and_export_are_whole_and_equal(case):
    model = case.build(**case.short).eval()
    x = torch.randn(1, 3, 230, 415)  # more windows than landmarks: the bounded grid is traced as well
    with torch.no_grad():
        expected = model(x)
        torch._dynamo.reset()
        compiled = torch.compile(model, fullgraph=True, backend='eager')(x)
    exported = torch.export.export(model, (x,)).module()  # which traces as other backends do
    for found in (compiled, exported(x)):
        assert all(relative_error(a, b) < 1e-4 for a, b in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['soft_pp', 'inline_cswin'])
def test_compiled_code_gives_the_same(name):
    """Of SOFT's stages, which are alike, the first; of CSwin's, whose layers are of most kinds, one of each kind."""
    case, arch, last = CASES[name], CASES[name].arch, 0
    if name == 'inline_cswin':
        arch, last = dict(arch, inline=(0, 1, 0, 0)), 1
    model, x = case.build(arch=arch, out_indices=(last,), **case.short).eval(), torch.randn(1, 3, 230, 415)
    torch._dynamo.reset()
    with torch.no_grad():
        (found,), (expected,) = torch.compile(model, fullgraph=True, backend=INDUCTOR)(x), model(x)
    assert relative_error(found, expected) < 1e-4


COMPILED = [(case, {}) for case in INLINE + FRONTIER] + [
    (CASES['soft_pp'], dict(newton_backward=backward, newton_iters=5)) for backward in ('closed', 'unrolled')
]


@pytest.mark.slow
@pytest.mark.parametrize(('case', 'options'), COMPILED, ids=lambda x: x.name if isinstance(x, Case) else str(x))
def test_compiled_training_gives_the_same_gradients(case, options):
    model = case.build(**options)
    x = torch.randn(1, 3, 230, 250)
    gradients = []
    torch._dynamo.reset()
    for run in (model, torch.compile(model, fullgraph=True, backend='aot_eager')):  # inductor: test_attentions.py
        model.zero_grad()
        sum(y.square().mean() for y in run(x)).backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(*gradients, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['inline_pvt', 'inline_swin', 'inline_deit', 'inline_cswin', 'mila', 'ravlt'])
def test_exported_classifiers_take_any_batch(name):
    model = CASES[name].classify(num_classes=5).eval()
    x = torch.randn(3, 3, 70, 90)
    program = exported_for_any_batch(model, x)
    for count in (2, 5):
        x = torch.randn(count, 3, 70, 90)
        assert relative_error(program(x), model(x)) < 1e-4


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', ['inline_pvt', 'inline_swin', 'inline_deit', 'inline_cswin', 'mila', 'ravlt'])
def test_traced_classifiers_take_any_batch(name):
    model = CASES[name].classify(num_classes=5).eval()
    traced = torch.jit.trace(model, torch.randn(2, 3, 70, 90))
    for count in (1, 3):
        x = torch.randn(count, 3, 70, 90)
        assert relative_error(traced(x), model(x)) < 1e-4


@every
def test_stages_freeze_as_in_mmdet(case):
    plain = case.family == 'InLineDeiT'  # counts layers, as mmpretrain's
    count = 3 if plain else 4
    for frozen in range(-1, count + 1):
        model = case.build(frozen_stages=frozen)
        model.train()
        first = model if plain else model.stages[0]
        stem = [first.embed, first.position] if frozen >= 0 else []
        whole = list((model.blocks if plain else model.stages)[: max(frozen, 0)])
        whole += [model.norm] if frozen == count else []
        expected = {id(p) for module in stem + whole for p in module.parameters()}
        if plain and frozen >= 0:
            expected |= {id(model.cls_token), id(model.cls_position)}
        assert {id(p) for p in model.parameters() if not p.requires_grad} == expected
        assert all(not m.training for module in stem + whole for m in module.modules())
        assert model.training
        if 0 <= frozen < count:
            before = {name: value.clone() for name, value in model.named_buffers()}
            sum(y.mean() for y in model(torch.randn(2, 3, 64, 64))).backward()
            assert all(p.grad is None for p in model.parameters() if not p.requires_grad)
            kept = [name for name in before if name.startswith('stages.0.embed')]
            assert all(torch.equal(before[name], model.get_buffer(name)) for name in kept)
    with pytest.raises(ValueError, match=rf'1 to {count} \(that many {"layers" if plain else "stages"}.*got 5'):
        case.build(frozen_stages=5)


@every
def test_outputs_can_be_chosen_and_unused_stages_are_not_built(case):
    model = case.build().eval()
    x = torch.randn(1, 3, 64, 96)
    for chosen in ((0,), (1, 2), (0, 3), (3,)):
        part = case.build(out_indices=chosen)
        sum(y.square().mean() for y in part(x)).backward()
        assert all(p.grad is not None for p in part.parameters())
        part.eval().load_state_dict({name: model.state_dict()[name] for name in part.state_dict()})
        if case.family != 'InLineDeiT':
            assert len(part.stages) == max(chosen) + 1
        assert part.channels == tuple(case.channels[i] for i in chosen)
        assert part.strides == tuple((4, 8, 16, 32)[i] for i in chosen)
        expected = [y for i, y in enumerate(model(x)) if i in chosen]
        assert all(torch.equal(a, b) for a, b in zip(part(x), expected, strict=True))


@every
def test_drop_path_rises_over_all_layers(case):
    rates = [block.drop_path.p for block in layers(case.build(drop_path_rate=0.4))]
    assert rates == pytest.approx(torch.linspace(0, 0.4, len(rates)).tolist())
    assert rates[-1] == pytest.approx(0.4)


@every
def test_branches_are_dropped_by_image(case):
    """With a rate of a half, what is kept counts twice."""
    drop = layers(case.build(drop_path_rate=0.5))[-1].drop_path
    assert drop(torch.ones(64, 2, 3)).unique().tolist() == [0, 2]


@every
def test_dropped_branches_do_nothing(case):
    model = case.build()
    for block in layers(model):
        block.drop_path.p = 1.0
    sum(y.square().mean() for y in model(torch.randn(2, 3, 64, 64))).backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if re.search(r'\.(attn|mlp|out_proj)\.', n)}
    assert gradients
    assert [n for n, g in gradients.items() if g is not None and g.any()] == []


@pytest.mark.parametrize('name', ['soft_pp', 'mila', 'ravlt'])
@pytest.mark.parametrize('norm_eval', [False, True])
def test_norm_eval_keeps_statistics(name, norm_eval):
    model = CASES[name].build(norm_eval=norm_eval).train()
    before = {n: value.clone() for n, value in model.named_buffers() if n.endswith('running_mean')}
    model(torch.randn(2, 3, 64, 64))
    assert before
    assert {torch.equal(value, model.get_buffer(n)) for n, value in before.items()} == {norm_eval}


@every
def test_a_wrong_image_is_named(case):
    for shape in ((3, 64, 64), (1, 1, 64, 64)):
        for model in (case.build(), case.classify()):
            with pytest.raises(ValueError, match=r'the model takes images \(B, 3, H, W\); got x \(') as error:
                model(torch.zeros(shape))
            assert str(shape) in str(error.value)


COMMON = {'arch', 'in_channels', 'img_size', 'out_indices', 'frozen_stages', 'with_cp', 'drop_path_rate', 'init_cfg'}
COMMON |= {'recompute'}


@every
def test_options_that_are_listed_exist(case):
    for model in (case.backbone, case.classifier):
        with pytest.raises(TypeError, match=rf"{model.__name__} has no option 'strides'\. Its options are ") as error:
            model(case.arch, strides=(4, 8))
        listed = set(str(error.value).split('options are ')[1].rstrip('.').split(', '))
        heads = {'num_classes', 'global_pool', 'drop_rate'} if model is case.classifier else set()
        accepted = {}
        for parent in reversed(case.backbone.__mro__[: case.backbone.__mro__.index(nn.Module)]):
            accepted |= inspect.signature(parent.__init__).parameters
        assert heads | COMMON <= listed
        assert listed <= set(accepted) | heads
        for option in listed - {'arch', 'init_cfg'}:
            with pytest.raises((ValueError, TypeError), match=option.rstrip('s')):  # what is listed is looked at
                model(case.arch, **{option: 'nonsense'})


@every
def test_type_checkers_see_every_option(case):
    """Those that a constructor passes on stand in a TypedDict beside it; each family's classifier names them all."""
    passed_on = inspect.signature(case.classifier).parameters['options'].annotation
    typed = vars(sys.modules[case.classifier.__module__])[re.search(r'(\w+Options)', str(passed_on))[1]]
    assert {'arch', *typed.__annotations__} == {*options_of(case.backbone)}
    assert {*options_of(case.classifier)} - {*options_of(case.backbone)} == {'num_classes', 'global_pool', 'drop_rate'}


@every
@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(arch='huge_v9'), "arch 'huge_v9' is unknown; choose one of tiny, small,"),
        (dict(drop_paths=0.1), "no option 'drop_paths'. Did you mean 'drop_path_rate'?"),
        (dict(out_indices=(0, 4)), r'from 0 to 3; got [0, 4]'),
        (dict(out_indices=(2, 1)), r'rising stage numbers'),
        (dict(out_indices=2), 'must be a list of stage numbers; got 2'),
        (dict(img_size=(224,)), 'img_size, or each side of a pair, must be an integer of at least 1; got (224,)'),
        (dict(img_size=0), 'got 0'),
        (dict(drop_path_rate='x'), "below 1; got 'x'"),
        (dict(drop_path_rate=1.0), 'below 1; got 1.0'),
        (dict(arch=dict(dims=(16,), heads=(1,))), 'exactly the keys dims, heads and depths'),
        (dict(arch=7), 'exactly the keys dims, heads and depths; got 7'),
    ],
    ids=str,
)
def test_bad_options_are_named(case, options, message):
    with pytest.raises((ValueError, TypeError)) as error:
        case.backbone(**options)
    assert message in str(error.value)


@pytest.mark.parametrize('case', ['inline_swin', 'inline_cswin'])
def test_a_wrong_mixture_of_layers_is_named(case):
    arch = CASES[case].arch
    for wrong, message in (
        (dict(inlin=(1, 1, 1, 0)), 'got dims, heads, depths, inlin; it may have a fourth, inline: how many layers'),
        (dict(inline=(9, 1, 1, 0)), 'arch inline counts layers of depths'),
    ):
        with pytest.raises(ValueError, match=message):
            CASES[case].backbone({key: arch[key] for key in ('dims', 'heads', 'depths')} | wrong)


@every
@pytest.mark.parametrize('init_cfg', ['file.pth', dict(checkpoint='x'), dict(type='Pretrained')], ids=str)
def test_a_wrong_init_cfg_is_shown_a_right_one(case, init_cfg):
    with pytest.raises(
        ValueError, match=r"init_cfg is a dict such as dict\(type='Pretrained', checkpoint='file.pth'\)"
    ):
        case.build(init_cfg=init_cfg).init_weights()


@pytest.mark.slow
@pytest.mark.parametrize(
    'case', [*(case.name.removesuffix('_tiny') for case in INLINE), 'soft_others', 'mila', 'ravlt']
)
def test_a_compiled_model_takes_a_second_size(case):
    """torch.compile then traces with sizes that are symbols."""
    model = CASES[case].build(overlap=False) if case == 'soft_others' else CASES[case].build()
    torch._dynamo.reset()
    compiled = torch.compile(model.eval(), backend='aot_eager')
    with torch.no_grad():
        for size in ((96, 130), (225, 162)):
            x = torch.randn(1, 3, *size)
            assert all(relative_error(a, b) < 1e-4 for a, b in zip(compiled(x), model(x), strict=True))
