"""Linear attention in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error

from mmsoft.layers import LinearAttention, PerformerAttention
from mmsoft.ops import kernels, linear_attention, linear_attention_reference

SHAPES = [(2, 37, 41, 3, 8, 8), (1, 1, 1, 1, 16, 16), (1, 150, 70, 2, 24, 40), (1, 70, 130, 1, 64, 64)]


def tensors(shape, dtype=torch.float32):
    """Features q and k, of which some queries are all 0, and v, of a shape (B, N, M, h, f, e)."""
    batch, n, m, heads, f, e = shape
    q, k = torch.randn(batch, n, heads, f).relu(), torch.randn(batch, m, heads, f).abs()
    q[:, 3:5] = 0
    return [x.to(dtype).transpose(1, 2) for x in (q, k, torch.randn(batch, m, heads, e))]


def check(inputs, tolerance, epsilon=0.0):
    single = [x.detach().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    with kernels('triton'):
        found = linear_attention(*single, epsilon)
    expected = linear_attention_reference(*double, epsilon)
    assert found.dtype == inputs[2].dtype
    assert relative_error(found, expected) < max(tolerance, torch.finfo(found.dtype).eps)
    weight = torch.randn_like(expected).to(found.dtype)
    exact = torch.autograd.grad(expected, double, weight.double())
    size = max(one.abs().max() for one in exact[1:])
    # a query without weights stands at the bound of its sum, where its slope is 1e12 times the gradient
    seen = (double[0] @ double[1].mean(2).unsqueeze(-1)).detach() > 0
    for x, gradient, one in zip(inputs, torch.autograd.grad(found, single, weight), exact, strict=True):
        assert gradient.dtype == x.dtype
        if x is inputs[0]:
            gradient, one = gradient.masked_fill(~seen, 0), one.masked_fill(~seen, 0)
        bound = max(tolerance, 2 * torch.finfo(x.dtype).eps)
        assert (gradient - one).abs().max() < bound * max(one.abs().max(), 1e-2 * size)


@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_values_and_gradients(shape):
    check(tensors(shape), 2e-5, 0.3 if shape[0] == 2 else 0.0)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    q, k, v = tensors((1, 37, 41, 2, 16, 8))
    check((q, k, v.to(dtype)), 2e-5)  # as features in float32 meet values under autocast
    check([x.to(dtype) for x in (q.clamp(min=0.1), k, v)], 2e-5)  # of 0 the slope is beyond float16


def test_layouts_batches_and_runs():
    inputs = tensors((3, 130, 130, 2, 16, 16))
    inputs[2] = inputs[2] * torch.tensor([1.0, 1e3, 1e-3]).view(3, 1, 1, 1)
    with kernels('triton'):
        found = linear_attention(*inputs)
        assert torch.equal(found, linear_attention(*(x.contiguous() for x in inputs)))
        for i in range(3):
            assert torch.equal(found[i : i + 1], linear_attention(*(x[i : i + 1] for x in inputs)))


@pytest.mark.parametrize(
    'layer', [LinearAttention(16, 2, 'elu'), LinearAttention(16, 2, 'exp'), PerformerAttention(16, 2)]
)
def test_layers_are_the_portable_ones(layer):
    x, results = torch.randn(2, 20, 16), []
    for kind in ('triton', 'portable'):
        with kernels(kind):
            y = layer(x)
            results.append([y, *torch.autograd.grad(y.square().sum(), layer.parameters())])
    for found, expected in zip(*results, strict=True):
        if expected.abs().max() > 1e-5:  # the keys' bias: of exp and of Performer's features it cancels
            assert relative_error(found, expected) < 1e-4
