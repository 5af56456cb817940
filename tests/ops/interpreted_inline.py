"""InLine attention in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import assert_as_in_float64, relative_error

from mmsoft.ops import kernels
from mmsoft.ops.inline import feature_map, inline_attention_reference
from mmsoft.ops.local import inline_with_convolution, inline_with_convolution_reference
from mmsoft.ops.triton.inline import inline_attention

SHAPES = [(2, 37, 3, 8, 8), (1, 1, 1, 16, 16), (1, 300, 2, 24, 24), (1, 70, 1, 64, 48)]  # B, N, h, d, e
KERNELS = ['identity', 'relu', 'leaky_relu', 'exp']


def reference(q, k, v, kernel):
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    return inline_attention_reference(feature_map(q, kernel), feature_map(k, kernel), v).transpose(1, 2)


def tensors(shape, dtype=torch.float32, spread=1.0):
    batch, n, heads, d, e = shape
    q, k = (spread * torch.randn(batch, n, heads, d).to(dtype) for _ in range(2))
    return [q, k, torch.randn(batch, n, heads, e).to(dtype)]


def check(inputs, tolerance, kernel='identity'):
    single = [x.detach().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = inline_attention(*single, kernel), reference(*double, kernel)
    bound = max(tolerance, torch.finfo(inputs[2].dtype).eps)
    assert found.dtype == inputs[2].dtype
    assert relative_error(found, expected) < bound
    weight = torch.randn_like(expected).to(found.dtype)
    exact = torch.autograd.grad(expected, double, weight.double())
    size = max(one.abs().max() for one in exact)
    for gradient, one in zip(torch.autograd.grad(found, single, weight), exact, strict=True):
        assert gradient.dtype == inputs[2].dtype
        assert (gradient - one).abs().max() < bound * max(one.abs().max(), 1e-3 * size)


@pytest.mark.parametrize('kernel', KERNELS)
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_values_and_gradients(shape, kernel):
    check(tensors(shape), 1e-5, kernel)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('kernel', ['identity', 'exp'])
def test_half_precision(dtype, kernel):
    check(tensors((2, 70, 2, 16, 16), dtype), 1e-5, kernel)


def test_values_in_float32_keep_their_gradient_beside_keys_in_half():
    q, k, v = tensors((1, 37, 2, 16, 16))
    q, k, v = q.half(), k.half(), v.requires_grad_()
    weight = torch.randn_like(v)
    (exact,) = torch.autograd.grad(reference(q, k, v, 'identity'), v, weight.double())
    (gradient,) = torch.autograd.grad(inline_attention(q, k.requires_grad_(), v), v, weight)
    assert relative_error(gradient, exact) < 1e-6


def test_large_means_do_not_cancel():
    q, k, v = tensors((1, 300, 1, 16, 16))
    check((q, k + 100, v + 100), 3e-5)


def test_strides_batches_and_runs():
    """Chunks of a joint projection are read in place; no bit depends on the batch or the run."""
    joint = torch.randn(3, 150, 3 * 32) * torch.tensor([1.0, 1e3, 1e-3]).view(3, 1, 1)
    q, k, v = (x.unflatten(-1, (2, 16)) for x in joint.chunk(3, -1))
    assert not q.is_contiguous()
    check((q[:1], k[:1], v[:1]), 1e-5)
    found = inline_attention(q, k, v)
    assert torch.equal(found, inline_attention(*(x.contiguous() for x in (q, k, v))))
    for i in range(3):
        assert torch.equal(found[i : i + 1], inline_attention(q[i : i + 1], k[i : i + 1], v[i : i + 1]))


def test_float16_saturates():
    q, k, v = tensors((1, 20, 1, 16, 16), torch.float16, spread=300.0)
    found = inline_attention(q, k, 300 * v)
    assert found.isfinite().all()
    assert found.abs().max() == 65504


@pytest.mark.parametrize(
    ('leading', 'heads', 'width', 'dtype', 'kernel'),
    [(0, 2, 16, torch.float32, 'identity'), (3, 3, 8, torch.float32, 'exp'), (1, 1, 8, torch.bfloat16, 'relu')],
)
def test_with_the_convolution_of_the_values(leading, heads, width, dtype, kernel):
    """Joint keys and values, tokens before the grid; gradients of both terms meet in the kernel."""
    channels, grid = heads * width, (5, 14)
    inputs = [
        torch.randn(2, leading + 70, channels).to(dtype),
        torch.randn(2, leading + 70, 2 * channels).to(dtype),
        torch.randn(2, channels, 3, 3).to(dtype),
    ]
    single = [x.detach().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    with kernels('triton'):
        found = inline_with_convolution(*single, grid, heads, kernel)
        again = inline_with_convolution(*(x[1:] for x in single), grid, heads, kernel)
    assert torch.equal(found[1:], again)
    expected = inline_with_convolution_reference(*double, grid, heads, kernel)
    bound = max(1e-5, 2 * torch.finfo(dtype).eps)
    assert found.dtype == dtype
    assert_as_in_float64(found, expected, single, double, bound)
