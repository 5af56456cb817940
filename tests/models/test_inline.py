"""InLine attention against its reference: the operator, the predicted convolution, the layer."""

import pytest
import torch
import torch.nn.functional as F
from backbones import OnGrid, exported_for_any_batch
from helpers import relative_error

from mmsoft.layers import InLineAttention
from mmsoft.layers.inline_attention import KERNELS, feature_map
from mmsoft.ops import (
    dynamic_depthwise,
    dynamic_depthwise_reference,
    inline_attention,
    inline_attention_reference,
)

FUNCTIONS = dict(
    identity=lambda x: x,
    relu=lambda x: x.clamp(min=0),
    leaky_relu=lambda x: torch.where(x > 0, x, 0.01 * x),
    exp=lambda x: torch.exp(0.2 * x),
)


def layer_reference(layer, x, grid):
    """The layer in float64 from its weights, head by head; x (B, T + H * W, C)."""
    layer, x = layer.double(), x.double()
    heads, dim, phi = layer.num_heads, x.shape[-1], FUNCTIONS[layer.kernel]
    grid = grid or (1, x.shape[1])
    leading = x.shape[1] - grid[0] * grid[1]
    q, (k, v) = layer.q(x), layer.kv(x).split(dim, -1)
    parts = [part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in (phi(q), phi(k), v)]
    y = inline_attention_reference(*parts).transpose(1, 2).flatten(2)
    if layer.predictor is not None:
        first, _, second = layer.predictor
        mean = x.mean(1).unflatten(-1, (heads, -1))  # (B, h, d)
        hidden = torch.einsum('bhi,hoi->bho', mean, first.weight.view(heads, -1, dim // heads)).flatten(1)
        hidden = F.gelu(hidden + first.bias).unflatten(-1, (heads, -1))
        kernels = torch.einsum('bhi,hoi->bho', hidden, second.weight.view(heads, -1, dim // heads)).flatten(1)
        kernels = (kernels + second.bias).view(-1, dim, 3, 3)
        image = v[:, leading:].transpose(1, 2).unflatten(-1, grid)
        local = dynamic_depthwise_reference(image, kernels).flatten(2).transpose(1, 2)
        y = torch.cat((y[:, :leading], y[:, leading:] + local), 1)
    return layer.proj(y)


def agree(found, expected, inputs, wide, tolerance=1e-5):
    assert relative_error(found, expected) < tolerance
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, inputs, weight.to(found.dtype))
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, wide, weight), strict=True):
        assert relative_error(gradient, exact) < tolerance


@pytest.mark.parametrize('shape', [(1, 2, 37, 37, 8, 8), (3, 1, 5, 11, 4, 6), (2, 3, 60, 1, 8, 8)])  # B, h, N, n, d, e
def test_attention_is_the_definition(shape):
    batch, heads, queries, keys, width, values = shape
    inputs = [torch.randn(batch, heads, n, d) for n, d in ((queries, width), (keys, width), (keys, values))]
    wide = [x.double().requires_grad_() for x in inputs]
    inputs = [x.requires_grad_() for x in inputs]
    used = [0, 1, 2] if keys > 1 else [2]  # all keys are their own mean: the weights are 1 / n
    agree(
        inline_attention(*inputs),
        inline_attention_reference(*wide),
        [inputs[i] for i in used],
        [wide[i] for i in used],
    )
    assert torch.autograd.gradcheck(inline_attention, wide)
    with pytest.raises(ValueError, match=r'takes q \(B, h, N, d\).*; got q \('):
        inline_attention(inputs[0], inputs[1], inputs[2][:, :, :0])


def test_rows_sum_to_one_and_tell_collinear_queries_apart():
    q, k = (
        torch.randn(1, 2, 1, 8).expand(-1, -1, 4, -1) * torch.tensor([1.0, 2.0, 3.0, -1.0])[:, None],
        torch.rand(1, 2, 30, 8),
    )
    weights = inline_attention(q, k, torch.eye(30).expand(1, 2, -1, -1))
    assert torch.allclose(weights.sum(-1), torch.ones(1, 2, 4), atol=1e-5)
    assert torch.pdist(weights[0, 0]).min() > 1e-3


def test_keys_far_from_zero_cost_no_precision():
    q, k, v = torch.randn(3, 1, 2, 4096, 16).unbind()
    assert relative_error(inline_attention(q, k + 1e3, v), inline_attention_reference(q, k, v)) < 1e-3
    assert relative_error(inline_attention(q, k, v + 1e3), inline_attention_reference(q, k, v + 1e3)) < 1e-6


@pytest.mark.parametrize('shape', [(1, 8, 5, 7), (3, 6, 1, 9), (2, 4, 12, 3)])
def test_convolution_with_own_kernels_is_the_definition(shape):
    x, kernels = torch.randn(shape), torch.randn(*shape[:2], 3, 3)
    wide = [x.double().requires_grad_(), kernels.double().requires_grad_()]
    inputs = [x.requires_grad_(), kernels.requires_grad_()]
    agree(dynamic_depthwise(*inputs), dynamic_depthwise_reference(*wide), inputs, wide)
    torch._dynamo.reset()
    compiled = torch.compile(dynamic_depthwise, fullgraph=True, backend='eager')
    agree(compiled(*inputs), dynamic_depthwise_reference(*wide), inputs, wide)
    assert dynamic_depthwise(x[:0], kernels[:0]).shape == (0, *shape[1:])
    with torch.device('meta'):
        assert dynamic_depthwise(torch.empty(shape), torch.empty(*shape[:2], 3, 3)).shape == shape
    with pytest.raises(ValueError, match='takes x'):
        dynamic_depthwise(x, kernels[:, :1])


@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize(('grid', 'leading'), [((5, 7), 0), ((5, 7), 1), ((1, 9), 2), ((3, 3), 0), (None, 0)], ids=str)
def test_layer_is_the_definition(kernel, grid, leading):
    layer = InLineAttention(24, 3, kernel)
    tokens = leading + (grid[0] * grid[1] if grid else 41)
    x = torch.randn(2, tokens, 24)
    y = layer(x.requires_grad_(), grid)
    weight = torch.randn_like(y)
    gradients = torch.autograd.grad(y, [x, *layer.parameters()], weight)
    expected = layer_reference(layer, wide := x.detach().double().requires_grad_(), grid)
    assert relative_error(y, expected) < 1e-5
    exact = torch.autograd.grad(expected, [wide, *layer.parameters()], weight.double())
    for found, true in zip(gradients, exact, strict=True):
        assert relative_error(found, true) < 1e-5


def test_the_local_term_is_an_option():
    layer = InLineAttention(16, 2, local=False)
    assert {name.split('.')[0] for name, _ in layer.named_parameters()} == {'q', 'kv', 'proj'}
    x = torch.randn(2, 30, 16)
    assert relative_error(layer(x, (5, 6)), layer_reference(layer, x, (5, 6))) < 1e-5
    with pytest.raises(ValueError, match="kernel 'gelu' is unknown; choose one of identity, relu, leaky_relu, exp"):
        InLineAttention(16, 2, 'gelu')
    with pytest.raises(ValueError, match=r'grid \(6, 6\) takes'):
        layer(x, (6, 6))


@pytest.mark.parametrize('kernel', KERNELS)
def test_an_image_does_not_see_its_batch(kernel):
    layer = InLineAttention(32, 4, kernel)
    x = torch.randn(4, 1 + 20 * 30, 32) * torch.tensor([1.0, 1e-3, 30.0, 1.0])[:, None, None]
    with torch.no_grad():
        together = layer(x, (20, 30))
        for i in range(4):
            assert relative_error(together[i : i + 1], layer(x[i : i + 1], (20, 30))) < 1e-5


@pytest.mark.parametrize('kernel', KERNELS)
def test_half_precision_is_finite_and_near(kernel):
    layer, x = InLineAttention(32, 4, kernel), torch.randn(2, 50 * 60, 32)
    expected = layer(x, (50, 60))
    with torch.autocast('cpu', torch.bfloat16):
        y = layer(x, (50, 60))
        y.float().square().mean().backward()
    assert relative_error(y, expected) < 0.03
    assert all(p.grad.isfinite().all() and p.grad.abs().max() > 0 for p in layer.parameters())
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            y = layer.to(dtype)((10 * x).to(dtype), (50, 60))
        assert y.dtype == dtype
        assert y.isfinite().all()
    q, k, v = (1e4 * torch.randn(3, 1, 2, 30, 4)).half()
    assert inline_attention(q, k, v).abs().max() == 65504  # what float16 cannot hold saturates


@pytest.mark.parametrize('leading', [0, 1])
def test_an_exported_layer_takes_any_batch(leading):
    layer = OnGrid(InLineAttention(16, 2).eval(), (5, 7))
    x = torch.randn(3, leading + 35, 16)
    program = exported_for_any_batch(layer, x)
    for count in (2, 5):
        x = torch.randn(count, leading + 35, 16)
        assert relative_error(program(x), layer(x)) < 1e-5


def test_feature_maps_are_the_formulas():
    x = torch.linspace(-3, 3, 25)
    for kernel in KERNELS:
        assert torch.allclose(feature_map(x, kernel), FUNCTIONS[kernel](x))
        assert feature_map(x.double(), kernel).dtype == torch.float64
    assert feature_map(torch.tensor([1e4]), 'exp').square().isfinite()
