"""The residual sum with its LayerNorm in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error
from torch import nn
from torchvision.ops import StochasticDepth

from mmsoft.ops import add_norm, add_norm_reference, kernels
from mmsoft.ops.triton import residual


def make(shape, x_dtype=torch.float32, y_dtype=torch.float32):
    """x, y, and a LayerNorm's scale and shift; means are large."""
    dtype = torch.promote_types(x_dtype, y_dtype)
    offset = 10.0 if dtype == torch.float32 else 0.0
    x, y = (torch.randn(shape) + offset).to(x_dtype), torch.randn(shape).to(y_dtype)
    return [x, y, torch.randn(shape[2]).to(dtype), torch.randn(shape[2]).to(dtype)]


def check(inputs, noise=None, tolerance=2e-5):
    single = [x.detach().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    share = 1.25
    x, y, w, b = double
    factor = 1 if noise is None else share * noise.double().view(-1, 1, 1)
    dtype = torch.promote_types(single[0].dtype, single[1].dtype)
    found = residual.add_norm(*single, noise, share if noise is not None else 1.0, 1e-5, True, dtype)
    expected = add_norm_reference(x, factor * y, w, b, 1e-5)
    assert [t.dtype for t in found] == [dtype, dtype]
    weights = [torch.randn_like(t).to(dtype) for t in expected]
    for used in ([0, 1], [1]):
        exact = torch.autograd.grad([expected[i] for i in used], double, [weights[i].double() for i in used],
                                    retain_graph=True)  # fmt: skip
        gradients = torch.autograd.grad([found[i] for i in used], single, [weights[i] for i in used], retain_graph=True)
        for value, one, leaf in zip(gradients, exact, single, strict=True):
            assert value.dtype == leaf.dtype
            assert relative_error(value, one) < max(tolerance, 2 * torch.finfo(value.dtype).eps)
    for value, one in zip(found, expected, strict=True):
        assert relative_error(value, one) < max(tolerance, 2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize('shape', [(2, 37, 96), (1, 1, 16), (3, 5, 320), (1, 130, 12), (1, 2, 1100)], ids=str)
def test_values_and_gradients(shape):
    check(make(shape))
    check(make(shape), torch.tensor([1.0, 0.0, 1.0])[: shape[0]])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    check(make((2, 9, 24), dtype, dtype), torch.tensor([0.0, 1.0]))
    check(make((2, 9, 24), torch.float32, dtype))  # as in autocast: the sum is float32, the branch's gradient is not


def test_strides_batches_and_runs():
    x, y, w, b = make((3, 21, 48))
    x *= torch.tensor([1.0, 1e3, 1e-3]).view(3, 1, 1)

    def run(x, y):
        return residual.add_norm(x, y, w, b, None, 1.0, 1e-5, True, torch.float32)

    found = run(x, y)
    turned = (t.transpose(1, 2).contiguous().transpose(1, 2) for t in (x, y))
    assert all(map(torch.equal, found, run(*turned)))
    for i in range(3):
        assert all(
            torch.equal(a[i : i + 1], one) for a, one in zip(found, run(x[i : i + 1], y[i : i + 1]), strict=True)
        )


def test_the_operator_draws_and_drops_as_the_module():
    x, y, _, _ = make((4, 6, 16))
    norm, drop = nn.LayerNorm(16), StochasticDepth(0.5, 'row')
    results = []
    for kind in ('triton', 'portable'):
        torch.manual_seed(0)
        with kernels(kind):
            leaves = [t.clone().requires_grad_() for t in (x, y)]
            s, normed = add_norm(*leaves, norm, drop)
            (normed * torch.linspace(-1, 1, 16) + 0.1 * s).sum().backward()
            results.append((s, normed, *(t.grad for t in leaves)))
    assert results[0][3].abs().sum((1, 2)).count_nonzero() in (1, 2, 3)  # of four images, some are dropped
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-5
    with torch.no_grad(), kernels('triton'):
        s, normed = add_norm(x, y, norm, drop.eval(), keep=False)
    assert s.numel() == 0
    assert relative_error(normed, norm(x + y)) < 1e-6
