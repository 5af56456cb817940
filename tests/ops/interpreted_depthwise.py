"""The depth-wise convolution in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error

from mmsoft.ops.inline import dynamic_depthwise_reference
from mmsoft.ops.triton.depthwise import dynamic_depthwise


def check(x, kernels, tolerance=1e-5):
    single = [t.detach().requires_grad_() for t in (x, kernels)]
    double = [t.detach().double().requires_grad_() for t in (x, kernels)]
    found, expected = dynamic_depthwise(*single), dynamic_depthwise_reference(*double)
    bound = max(tolerance, torch.finfo(x.dtype).eps)
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert relative_error(found, expected) < bound
    weight = torch.randn_like(expected).to(x.dtype)
    exact = torch.autograd.grad(expected, double, weight.double())
    for gradient, one in zip(torch.autograd.grad(found, single, weight), exact, strict=True):
        assert relative_error(gradient, one) < bound


@pytest.mark.parametrize('shape', [(2, 5, 7, 11), (1, 48, 1, 1), (1, 33, 13, 14), (2, 4, 1, 9)], ids=str)
def test_values_and_gradients(shape):
    check(torch.randn(shape), torch.randn(*shape[:2], 3, 3))


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    check(torch.randn(2, 5, 7, 11).to(dtype), torch.randn(2, 5, 3, 3).to(dtype))
    found = dynamic_depthwise(torch.full((1, 1, 3, 3), 6e4).to(dtype), torch.ones(1, 1, 3, 3).to(dtype))
    assert found.isfinite().all()


def test_strides_batches_and_runs():
    """A slice of tokens seen as a map; no bit depends on the layout, the batch or the run."""
    tokens = torch.randn(3, 150, 2 * 8) * torch.tensor([1.0, 1e3, 1e-3]).view(3, 1, 1)
    x = tokens[:, :, 8:].unflatten(1, (10, 15)).permute(0, 3, 1, 2)
    kernels = torch.randn(3, 8, 3, 3)
    check(x[:1], kernels[:1])
    found = dynamic_depthwise(x, kernels)
    assert torch.equal(found, dynamic_depthwise(x.contiguous(), kernels))
    x, kernels = x.detach().requires_grad_(), kernels.requires_grad_()
    gradients = torch.autograd.grad(dynamic_depthwise(x, kernels).square().sum(), (x, kernels))
    for i in range(3):
        one = [t[i : i + 1].detach().requires_grad_() for t in (x, kernels)]
        alone = dynamic_depthwise(*one)
        assert torch.equal(alone, found[i : i + 1])
        for a, b in zip(torch.autograd.grad(alone.square().sum(), one), gradients, strict=True):
            assert torch.equal(a, b[i : i + 1])
