"""Every attention by its name, against a direct reference of its formula: any grid, sequences, half precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from backbones import OnGrid
from helpers import INDUCTOR, MINI, relative_error
from own_attention import EfficientAttention
from torch import nn

from mmsoft.engine.complexity import count_macs
from mmsoft.layers import (
    Landmarks,
    LinearAttention,
    LinformerAttention,
    MILAAttention,
    NystromformerAttention,
    PerformerAttention,
    PolaFormerAttention,
    RALAAttention,
    SoftAttention,
    SoftmaxAttention,
    redraw_features,
)
from mmsoft.models import SOFT, SOFTClassifier
from mmsoft.models.attentions import ATTENTIONS, Place, build_attention, one_a_stage
from mmsoft.ops import (
    linear_attention,
    linear_attention_reference,
    nystrom_attention_reference,
    orthogonal_directions,
    positive_features,
    positive_features_reference,
    rotary_attention_reference,
    softmax_free_attention_reference,
    softmax_pinv,
    softmax_pinv_reference,
)
from mmsoft.ops.newton import BACKWARDS

DIM, HEADS = 24, 3
SPECS = [
    *({'type': name} for name in ATTENTIONS),
    dict(type='soft_pp', symmetric=False),
    dict(type='soft', symmetric=False),
    dict(type='soft_pp', scaled=False),
    dict(type='softmax', symmetric=True),
    dict(type='softmax', reduction=True),
    dict(type='linear', kernel='relu'),
    dict(type='linear', kernel='exp'),
]
GAUSSIAN = ('soft', 'soft_pp')


def build(spec, grid=(8, 12), ratio=4):
    """An attention as SOFT would build it in a stage of this grid; few landmarks, so that they are bounded as well."""
    landmarks = dict(num_landmarks=8, sampling='conv', seed=0)
    place = Place(DIM, HEADS, ratio, 3, grid, 0, None, landmarks, dict(newton_iters=20, newton_backward='unrolled'))
    return build_attention(one_a_stage(spec, None)[0], place)


def sequence(name):
    """An attention for sequences of 40 tokens: landmarks average a window of four, as in the Long Range Arena."""
    landmarks = Landmarks(DIM // HEADS, (1, 4), sampling='avg_pool')
    return dict(
        soft_pp=lambda: SoftAttention(DIM, HEADS, landmarks, (1, 3)),
        soft=lambda: SoftAttention(DIM, HEADS, landmarks, (1, 3), normalize=False),
        nystromformer=lambda: NystromformerAttention(DIM, HEADS, landmarks),
        reduced=lambda: SoftmaxAttention(DIM, HEADS, reduction=(1, 4)),
        linformer=lambda: LinformerAttention(DIM, HEADS, (1, 40), 8),
    ).get(name, lambda: build(dict(type=name)))()


def split(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def join(y):
    return y.transpose(1, 2).flatten(2)


def pooled(x, window, bound):
    """Averages of windows of x (B, C, H, W), which is first averaged to ``bound`` windows if there is a bound."""
    if bound:
        x = F.adaptive_avg_pool2d(x, [g * r for g, r in zip(bound, window, strict=True)])
    rows = [
        x[:, :, i : i + window[0], j : j + window[1]].mean((2, 3))
        for i in range(0, x.shape[2] - window[0] + 1, window[0])
        for j in range(0, x.shape[3] - window[1] + 1, window[1])
    ]
    return torch.stack(rows, 1)  # (B, m, C)


def softmax_of(q, k, v):
    return (split(q) @ split(k).transpose(-1, -2) * (DIM // HEADS) ** -0.5).softmax(-1) @ split(v)


def direct(layer, x, grid, bound=None):
    """The formula in float64, all N x N weights; x (B, T + H * W, C)."""
    layer, x = layer.double(), x.double()
    height, width = grid or (1, x.shape[1])
    first = x.shape[1] - height * width
    as_map = lambda tokens: tokens.transpose(1, 2).unflatten(2, (height, width))  # noqa: E731
    if isinstance(layer, EfficientAttention):
        q, k, v = map(split, layer.qkv(x).chunk(3, -1))
        return layer.proj(join((q.softmax(-1) @ k.softmax(-2).transpose(-1, -2)) @ v))
    if isinstance(layer, (MILAAttention, RALAAttention)):
        q, k, v, gate = (
            (*layer.qk(x).chunk(2, -1), x, 1) if isinstance(layer, MILAAttention) else layer.qkvo(x).chunk(4, -1)
        )
        count = DIM // 4 if isinstance(layer, MILAAttention) else DIM // HEADS // 4
        powers = torch.arange(count) / (count if isinstance(layer, MILAAttention) else count - 1)
        angles = [torch.arange(side)[:, None] * 10000**-powers for side in (height, width)]
        y = rotary_attention_reference(split(q), split(k), split(v), *angles, isinstance(layer, RALAAttention))
        local = layer.lepe(as_map(v[:, first:])).flatten(2).transpose(1, 2)
        y = (join(y) + F.pad(local, (0, 0, first, 0))) * gate
        return y if isinstance(layer, MILAAttention) else layer.proj(y)
    if isinstance(layer, PolaFormerAttention):
        return polaformer(layer, x, (height, width))
    q, root = layer.q(x), (DIM // HEADS) ** 0.25
    if isinstance(layer, SoftAttention):
        v, k = layer.v(x), None if layer.k is None else split(layer.k(x) / root)
        landmarks = layer.landmarks(q[:, first:] / root, (height, width))
        share = landmarks.shape[2] / math.prod(
            max(n // r, 1) for n, r in zip((height, width), layer.landmarks.ratio, strict=True)
        )
        y = softmax_free_attention_reference(
            split(q) / root, landmarks, split(v), normalize=layer.normalize, k=k, gain=share if layer.scaled else 1.0
        )
        weight = layer.local.repeat_interleave(DIM // HEADS, 0)
        local = F.conv2d(as_map(v[:, first:]), weight, padding=[n // 2 for n in weight.shape[2:]], groups=DIM)
        y = join(y)
        y[:, first:] += local.flatten(2).transpose(1, 2)
        return layer.proj(y)
    if isinstance(layer, SoftmaxAttention):
        source = x
        if layer.reduces:
            rows, columns = layer.reduction
            windows = F.pad(as_map(x[:, first:]), (0, -width % columns, 0, -height % rows))
            reduced = layer.reduce_norm(layer.reduce(windows).flatten(2).transpose(1, 2))
            source = torch.cat((x[:, :first], reduced), 1)
        k, v = (layer.q(source), layer.kv(source)) if layer.symmetric else layer.kv(source).chunk(2, -1)
        return layer.proj(join(softmax_of(q, k, v)))
    k, v = layer.kv(x).chunk(2, -1)
    if isinstance(layer, LinformerAttention):
        tokens = F.adaptive_avg_pool2d(as_map(x[:, first:]), layer.length).flatten(2).transpose(1, 2)
        mixed_k, mixed_v = layer.kv(tokens).chunk(2, -1)
        k = torch.cat((k[:, :first], layer.mix_k @ mixed_k), 1)
        v = torch.cat((v[:, :first], layer.mix_v @ mixed_v), 1)
        return layer.proj(join(softmax_of(q, k, v)))
    if isinstance(layer, NystromformerAttention):
        lq, lk = (pooled(as_map(t[:, first:]), layer.landmarks.ratio, bound) for t in (q, k))
        return layer.proj(join(nystrom_attention_reference(split(q), split(k), split(v), split(lq), split(lk))))
    if isinstance(layer, PerformerAttention):
        features = [
            positive_features_reference(split(t) / root, layer.directions, keys) for t, keys in ((q, False), (k, True))
        ]
    else:
        phi = dict(elu=lambda t: torch.where(t > 0, t + 1, t.exp()), relu=F.relu, exp=torch.exp)[layer.kernel]
        features = [phi(split(t) / root) for t in (q, k)]
    return layer.proj(join(linear_attention_reference(*features, split(v))))


def polaformer(layer, x, grid):
    """Formula of the paper, head by head and image by image."""
    first, width = x.shape[1] - grid[0] * grid[1], DIM // HEADS
    outputs = []
    for image in x:
        (q, gate), (k, v) = layer.qg(image).chunk(2, 1), layer.kv(image).chunk(2, 1)
        table = layer.position.table.permute(0, 3, 1, 2)
        table = F.interpolate(table, grid, mode='bilinear', align_corners=False)[0].flatten(1).T
        k = torch.cat((k[:first], k[first:] + table))
        sigma, heads = (1 + layer.scale[0].exp()).log(), []
        for i in range(HEADS):
            part, power = slice(i * width, (i + 1) * width), 1 + 4 / (1 + (-layer.power[0, i]).exp())
            (a, b), (c, d) = [
                [torch.where(s * t > 0, (s * t).abs().clamp(min=1e-30), 0) ** power for s in (1, -1)]
                for t in ((q / sigma)[:, part], (k / sigma)[:, part])
            ]
            found = []
            for scores, value in (
                (a @ c.T + b @ d.T, v[:, part][:, : width // 2]),
                (b @ c.T + a @ d.T, v[:, part][:, width // 2 :]),
            ):
                found.append(scores @ value / (scores.sum(1, keepdim=True) + 1e-6 * len(k)))
            local = F.conv2d(
                v[first:, part].T.unflatten(1, grid)[None], layer.dwc.weight, layer.dwc.bias, padding=2, groups=width
            )
            heads.append(torch.cat(found, 1) + F.pad(local[0].flatten(1).T, (0, 0, first, 0)))
        outputs.append(torch.cat(heads, 1) * gate)
    return layer.proj(torch.stack(outputs))


OWN = [spec for spec in SPECS if spec['type'] != 'inline']  # test_inline.py has its reference


@pytest.mark.parametrize('spec', OWN, ids=str)
@pytest.mark.parametrize(
    ('grid', 'leading', 'bound'),
    [((8, 12), 0, None), ((8, 12), 1, None), ((5, 9), 2, None), ((13, 27), 0, (2, 4))],
    ids=str,
)
def test_a_layer_is_its_formula(spec, grid, leading, bound):
    layer = build(spec)
    x = torch.randn(2, leading + grid[0] * grid[1], DIM, requires_grad=True)
    y = layer(x, grid)
    weight = torch.randn_like(y)
    inputs = [x, *layer.parameters()]
    gradients = torch.autograd.grad(y, inputs, weight)
    wide = x.detach().double().requires_grad_()
    expected = direct(layer, wide, grid, bound)
    assert relative_error(y, expected) < 2e-5
    if spec['type'] in GAUSSIAN:
        return  # its reference has no gradient where eigenvalues meet; test_ops.py has the operator's gradcheck
    exact = torch.autograd.grad(expected, [wide, *layer.parameters()], weight.double())
    for found, true in zip(gradients, exact, strict=True):
        assert (found - true).abs().max() < 1e-4 * max(true.abs().max(), 1e-3)


@pytest.mark.parametrize('attn', GAUSSIAN)
@pytest.mark.parametrize('grid', [(8, 16), (24, 24), (41, 67)])
def test_a_bound_leaves_the_size_of_the_output(attn, grid):
    """On a map of one colour, attention gives at any size what it gives where every window has its landmark.

    But for tokens that fill no window, of which the last grid has some.
    """

    def attention(grid, **options):
        torch.manual_seed(0)
        layer = build(dict(type=attn, **options))
        nn.init.zeros_(layer.local)
        nn.init.zeros_(layer.proj.bias)
        token = torch.randn(1, 1, DIM)
        return layer(token.expand(1, grid[0] * grid[1], DIM), grid)[:, :1]

    count = build(dict(type=attn)).landmarks(torch.zeros(1, grid[0] * grid[1], DIM), grid).shape[2]
    expected = attention((8, 16))  # eight windows, eight landmarks
    if attn == 'soft':  # without normalisation it grows with the landmarks themselves
        expected = expected * count / 8
    assert relative_error(attention(grid), expected) < 0.15
    windows = (grid[0] // 4) * (grid[1] // 4)
    assert relative_error(attention(grid, scaled=False), expected * windows / count) < 0.15


@pytest.mark.parametrize('name', [*ATTENTIONS, 'reduced'])
def test_sequences_need_no_grid(name):
    layer = sequence(name)
    for length in (400, 40, 41, 150, 7):  # of 400, landmarks are bounded
        x = torch.randn(2, length, DIM)
        y = layer(x)
        assert torch.equal(y, layer(x, (1, length)))
        if name != 'inline':
            copy = sequence(name)
            copy.load_state_dict(layer.state_dict())
            assert relative_error(y, direct(copy, x, None, (1, 49) if length > 4 * 49 else None)) < 2e-5
    # what stands further along matters: a token's output depends on every other token
    far = x.clone()
    far[:, -1] += 1
    assert (layer(far) - layer(x))[:, 0].abs().max() > 1e-6


def test_a_window_for_maps_says_that_a_sequence_takes_another():
    for name in ('soft_pp', 'soft', 'nystromformer'):
        with pytest.raises(ValueError, match=r'a sequence takes a landmark window \(1, r\); this one is 4 x 4'):
            build(dict(type=name))(torch.randn(1, 40, DIM))
    with pytest.raises(ValueError, match=r'a sequence takes a local kernel \(1, k\); this one has 3 x 3'):
        SoftAttention(DIM, HEADS, Landmarks(8, (1, 4)), 3)(torch.randn(1, 40, DIM))
    with pytest.raises(ValueError, match=r'a sequence takes a reduction \(1, r\); this one is 4 x 4'):
        build(dict(type='softmax', reduction=True))(torch.randn(1, 40, DIM))
    with pytest.raises(ValueError, match=r'attention on grid \(7, 7\) takes .*; got x \(1, 40, 24\)'):
        build(dict(type='linear'))(torch.randn(1, 40, DIM), (7, 7))


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_multiply_adds_are_linear_in_tokens(spec):
    with torch.device('meta'):
        layer = build(spec)
        cost = [count_macs(OnGrid(layer, (side, 2 * side)), 1, 2 * side**2, DIM) / side**2 for side in (32, 128)]
    if not ATTENTIONS[spec['type']].linear:
        assert cost[1] > 3 * cost[0]
    else:
        assert cost[1] == pytest.approx(cost[0], rel=0.05)


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_an_image_does_not_see_its_batch(spec):
    layer = build(spec).eval()
    x = torch.randn(4, 13 * 27, DIM) * torch.tensor([1.0, 1e-3, 30.0, 5.0]).view(4, 1, 1)
    with torch.no_grad():
        together = layer(x, (13, 27))
        for i in range(4):
            assert relative_error(together[i : i + 1], layer(x[i : i + 1], (13, 27))) < 1e-5, i


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_half_precision_stays_finite_and_near(spec):
    layer = build(spec)
    x = torch.randn(2, 13 * 27, DIM)
    expected = layer(x, (13, 27))
    with torch.autocast('cpu', torch.bfloat16):
        y = layer(x, (13, 27))
        layer(50 * x, (13, 27)).float().square().mean().backward()
    assert (y - expected).abs().mean() / expected.abs().mean() < 0.05
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in layer.parameters())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            for scale in (1e-3, 1, 10):
                y = layer.to(dtype)((scale * x).to(dtype), (13, 27))
                assert y.dtype == dtype
                assert y.isfinite().all()


def test_polaformers_powers_of_large_values_are_finite():
    """Products of two fifth powers of 1e5 are beyond float32."""
    layer, x = build(dict(type='polaformer')), torch.randn(1, 96, DIM, requires_grad=True)
    with torch.no_grad():
        layer.qg.weight[:DIM] *= 1e5
        layer.kv.weight[:DIM] *= 1e5
        layer.power.fill_(9.0)
    y = layer(x, (8, 12))
    assert y.isfinite().all()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.isfinite().all()


def test_polaformers_weights_have_the_authors_names():
    """And shapes, as their PVT has them; but for the position table, which is theirs flattened."""
    linear = {f'{name}.weight': (n * DIM, DIM) for name, n in dict(qg=2, kv=2, proj=1).items()}
    linear |= {f'{name}.bias': (n * DIM,) for name, n in dict(qg=2, kv=2, proj=1).items()}
    width = DIM // HEADS
    own = {'dwc.weight': (width, 1, 5, 5), 'dwc.bias': (width,), 'scale': (1, 1, DIM), 'power': (1, HEADS, 1, width)}
    found = {name: tuple(x.shape) for name, x in build(dict(type='polaformer')).state_dict().items()}
    assert found == linear | own | {'position.table': (1, 8, 12, DIM)}


def test_polaformer_adds_a_millionth_to_a_querys_sum():
    """Which sums of sixth powers of small values are about as large as."""
    layer = build(dict(type='polaformer'))
    with torch.no_grad():
        for parameter in (layer.qg.bias, layer.kv.bias, layer.position.table):
            parameter.zero_()
        x = 0.1 * torch.randn(2, 96, DIM)
        assert relative_error(layer(x, (8, 12)), direct(layer, x, (8, 12))) < 1e-4


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16], ids=str)
def test_linear_attention_of_half_precision_rounds_its_output_alone(dtype):
    q, k, v = (torch.randn(1, 2, n, 4).abs().to(dtype) for n in (9, 700, 700))
    y = linear_attention(q, k, 50 * v, 0.1)
    assert y.dtype == dtype
    assert relative_error(y, linear_attention_reference(q, k, 50 * v, 0.1)) < torch.finfo(dtype).eps


def test_linear_attention_keeps_far_apart_channels():
    """With exp, a query whose largest channel is small in all keys has weights of sum 1 all the same."""
    layer = LinearAttention(16, 1, 'exp')
    q, k = torch.zeros(1, 1, 2, 16), torch.randn(1, 1, 5, 16)
    q[..., 1], k[..., 0] = 80, k[..., 0] + 80
    weights = linear_attention(*layer.features(q, k), torch.eye(5).expand(1, 1, -1, -1))
    logs = (q.double().unsqueeze(3) + k.double().unsqueeze(2)) * 16**-0.25  # (1, 1, 2, 5, 16)
    assert relative_error(weights, logs.logsumexp(-1).softmax(-1)) < 1e-5


def test_positive_features_estimate_the_exponential():
    """Without bias: the mean over draws is exp(q.k) up to the two scales."""
    q, k = torch.randn(2, 1, 1, 12, 16).double() / 4
    exact = torch.exp(q @ k.transpose(-1, -2))
    estimates = []
    for seed in range(1000):
        directions = orthogonal_directions(64, 16, seed).double()
        fq, fk = (positive_features(x, directions, keys) for x, keys in ((q, False), (k, True)))
        assert relative_error(fk, positive_features_reference(k, directions, True)) < 1e-12
        logs = q @ directions.t()
        scale_q = torch.exp(logs.amax(-1, keepdim=True) - q.square().sum(-1, keepdim=True) / 2)
        scale_k = torch.exp((k @ directions.t() - k.square().sum(-1, keepdim=True) / 2).max())
        estimates.append(scale_q * scale_k * (fq @ fk.transpose(-1, -2)))
    assert relative_error(torch.stack(estimates).mean(0), exact) < 0.05
    first = orthogonal_directions(64, 16, 3)
    block = F.normalize(first[:16], dim=1)
    assert torch.allclose(block @ block.t(), torch.eye(16), atol=1e-5)
    assert torch.equal(first, orthogonal_directions(64, 16, 3))


def test_performer_draws_from_its_seed_and_again_on_demand():
    generator = torch.get_rng_state()
    model = SOFT(MINI, attn='performer').eval()
    directions = [m.directions.clone() for m in model.modules() if isinstance(m, PerformerAttention)]
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        before = model(x)[0]
        assert redraw_features(model, 7) == 4
        assert not torch.equal(model(x)[0], before)
        assert redraw_features(model, 0) == 4  # the seeds that layers start from
        assert torch.equal(model(x)[0], before)
        assert redraw_features(model, 7) == 4
        again = [m.directions.clone() for m in model.modules() if isinstance(m, PerformerAttention)]
        assert all(not torch.equal(a, b) for a, b in zip(again, directions, strict=True))
        assert not torch.equal(again[0], again[1][: len(again[0])])
    assert 'stages.0.blocks.0.attn.directions' in model.state_dict()
    torch.set_rng_state(generator)
    drawn = torch.rand(1)
    torch.set_rng_state(generator)
    orthogonal_directions(8, 8, 0)
    assert torch.equal(torch.rand(1), drawn)  # the seed is its own


def test_nystrom_is_exact_when_every_token_is_a_landmark():
    layer = NystromformerAttention(DIM, HEADS, Landmarks(DIM // HEADS, 1, None, 'avg_pool'), iterations=30).double()
    x = torch.randn(2, 20, DIM).double()
    k, v = layer.kv(x).chunk(2, -1)
    assert relative_error(layer(x, (4, 5)), layer.proj(join(softmax_of(layer.q(x), k, v)))) < 1e-6
    a = torch.randn(2, 3, 9, 9).double().softmax(-1)
    assert relative_error(softmax_pinv(a), softmax_pinv_reference(a)) < 1e-12
    assert relative_error(softmax_pinv(a, 40), torch.linalg.pinv(a)) < 1e-8


def test_performer_nears_softmax_with_more_features():
    torch.manual_seed(1)
    errors = []
    for count in (16, 4096):
        layer = PerformerAttention(DIM, HEADS, count).double()
        torch.manual_seed(2)
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.15)
        x = torch.randn(1, 50, DIM).double()
        k, v = layer.kv(x).chunk(2, -1)
        errors.append(relative_error(layer(x), layer.proj(join(softmax_of(layer.q(x), k, v)))))
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize('spec', SPECS, ids=str)
def test_layers_export(spec):
    layer = build(spec).eval()
    x = torch.randn(2, 1 + 13 * 27, DIM)
    expected = layer(x, (13, 27))
    exported = torch.export.export(OnGrid(layer, (13, 27)), (x,)).module()
    assert relative_error(exported(x), expected) < 1e-4


@pytest.mark.parametrize(
    'attn', [*SPECS, ['linear', dict(type='softmax', reduction=True), 'inline', 'soft_pp']], ids=str
)
@pytest.mark.parametrize('pyramid', [True, False])
def test_a_backbone_takes_them_all(attn, pyramid):
    model = SOFT(MINI, attn=attn, pyramid=pyramid, drop_path_rate=0.0, img_size=96)
    maps = model(torch.randn(2, 3, 70, 101))
    widths = MINI['dims'] if pyramid else (48,) * 4
    strides = (4, 8, 16, 32) if pyramid else (16,) * 4
    assert [tuple(y.shape) for y in maps] == [
        (2, width, -(-70 // stride), -(-101 // stride)) for width, stride in zip(widths, strides, strict=True)
    ]
    assert (model.channels, model.strides) == (widths, strides)
    sum((y * torch.randn_like(y)).mean() for y in maps).backward()
    assert [n for n, p in model.named_parameters() if p.grad is None or p.grad.abs().max() == 0] == []
    expected = attn if isinstance(attn, list) else [attn] * 3 + [dict(type='softmax') if pyramid else attn]
    names = [spec if isinstance(spec, str) else spec['type'] for spec in expected]
    layers = [type(stage.blocks[0].attn).__name__.removesuffix('Attention').lower() for stage in model.stages]
    assert layers == ['soft' if name == 'soft_pp' else name for name in names]
    classifier = SOFTClassifier(MINI, attn=attn, pyramid=pyramid, num_classes=5, img_size=96).eval()
    x = torch.randn(2, 3, 70, 101)
    assert classifier(x).shape == (2, 5)
    assert [m.shape for m in classifier.forward_intermediates(x)[1]] == [m.shape for m in maps]


def test_a_trunk_without_a_pyramid_is_one_scale():
    model = SOFT('small', attn='soft_pp', pyramid=False, overlap=False)
    attentions = [block.attn for stage in model.stages for block in stage.blocks]
    assert len(attentions) == 11
    assert {(a.num_heads, tuple(a.landmarks.ratio), tuple(a.local.shape)) for a in attentions} == {
        (12, (2, 2), (12, 1, 3, 3))
    }
    assert [type(stage.embed).__name__ for stage in model.stages] == ['Sequential', *['Identity'] * 3]
    tokens = model.stages[0].embed[0][0]
    assert (tokens.kernel_size, tokens.stride) == ((16, 16), (16, 16))
    assert model.stages[0].position.table.shape == (1, 14, 14, 384)


@pytest.mark.parametrize(
    ('attn', 'error', 'message'),
    [
        ('lineer', ValueError, "attn 'lineer' is unknown; choose one of soft_pp, soft, softmax, linformer, performer"),
        (['soft'] * 3, ValueError, "or a list of four of these; got ['soft', 'soft', 'soft'], which has 3"),
        (
            ['soft'] * 3 + [dict(type='softmax', reduction=True)],
            ValueError,
            "attn 'softmax': reduction=True would have no effect in stage 4",
        ),
        (7, ValueError, 'or a list of four of these; got 7'),
        ([None] * 4, ValueError, 'attn of a stage must be a name or a dict with a type; got None'),
        (dict(type='softmax', reduction='yes'), ValueError, "'softmax': reduction must be True or False; got 'yes'"),
        (dict(type='performer', seed='x'), ValueError, "seed must be an integer of at least 0; got 'x'"),
        (dict(type='nystromformer', sampling='max'), ValueError, "landmark_sampling 'max' is unknown"),
        (dict(kernel='relu'), ValueError, "attn of a stage must be a name or a dict with a type; got {'kernel'"),
        (dict(type='linear', kernels='relu'), TypeError, "'linear' has no option 'kernels'; its options are kernel"),
        (dict(type='rala', kernel='relu'), TypeError, "'rala' has no option 'kernel'; it has none"),
        (dict(type='linear', kernel='gelu'), ValueError, "kernel 'gelu' is unknown; choose one of elu, relu, exp"),
        (dict(type='performer', num_features=0), ValueError, 'num_features must be an integer of at least 1; got 0'),
        (dict(type='linformer', num_mixtures=0), ValueError, 'num_mixtures must be an integer of at least 1; got 0'),
    ],
    ids=str,
)
def test_bad_names_and_options_are_named(attn, error, message):
    with pytest.raises(error) as caught:
        SOFT('tiny', attn=attn)
    assert message in str(caught.value)


def test_layers_name_what_does_not_fit():
    for build_wrong, message in (
        (lambda: PerformerAttention(64, 0), 'num_heads must be an integer of at least 1; got 0'),
        (lambda: SoftAttention(65, 2, Landmarks(32, 4), 3), r'dim \(65\) must be a multiple of num_heads \(2\)'),
        (
            lambda: SoftAttention(64, 2, Landmarks(32, 4), 4),
            'local_kernel must have odd sides, .*; got 4',
        ),
        (lambda: SOFT('tiny', pyramid='x'), "pyramid must be True or False; got 'x'"),
        (lambda: SOFT('tiny', attn='inline', num_landmarks=0), r'num_landmarks .* at least 1; got 0'),
        (lambda: SOFT('tiny', attn='nystromformer', landmark_sampling='max'), "landmark_sampling 'max' is unknown"),
        (
            lambda: SOFTClassifier('tiny', attn='inline', newton_iters=5),
            'SOFT: newton_iters=5 would have no effect, as attn by stage is inline, inline, inline, softmax',
        ),
        (
            lambda: SOFT('tiny', attn='nystromformer', landmark_sampling='first'),
            "landmark_sampling='first' would have no effect, as attn by stage is nystromformer",
        ),
        (lambda: SOFT('tiny', attn='linear', num_landmarks=9), 'num_landmarks=9 would have no effect.*none has landm'),
        (lambda: SOFT('tiny', landmark_seed=3), "landmark_seed=3 would have no effect, as no landmarks .* at 'random'"),
        (lambda: redraw_features(SOFT(MINI, attn='performer'), 'x'), "seed must be an integer of at least 0; got 'x'"),
        (lambda: SOFT('tiny', with_cp='x'), "with_cp must be True or False; got 'x'"),
        (lambda: SOFT('tiny', landmark_seed='x'), "landmark_seed must be an integer of at least 0; got 'x'"),
    ):
        with pytest.raises(ValueError, match=message):
            build_wrong()


@pytest.mark.slow
@pytest.mark.parametrize('newton_backward', BACKWARDS)
def test_compiled_gradients_are_those_of_eager_mode(newton_backward):
    """Machine code of our own backward passes; test_every_backbone compares the graphs of whole models."""
    landmarks = Landmarks(DIM // HEADS, 2, num_landmarks=8)
    attention = SoftAttention(DIM, HEADS, landmarks, 3, newton_iters=2, newton_backward=newton_backward)
    x, gradients = torch.randn(2, 9 * 14, DIM, requires_grad=True), []
    torch._dynamo.reset()
    for run in (attention, torch.compile(attention, fullgraph=True, backend=INDUCTOR)):
        loss = run(x, (9, 14)).square().mean()
        gradients.append(torch.autograd.grad(loss, [x, *attention.parameters()]))
    for eager, compiled in zip(*gradients, strict=True):
        assert relative_error(compiled, eager) < 1e-3
