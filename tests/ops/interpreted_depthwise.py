"""The depth-wise convolution in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import assert_as_in_float64

from mmsoft.ops import kernels
from mmsoft.ops.inline import dynamic_depthwise_reference
from mmsoft.ops.local import add_head_convolution, add_head_convolution_reference, add_predicted_convolution
from mmsoft.ops.triton.depthwise import add_depthwise, dynamic_depthwise


def check(x, weights, tolerance=1e-5):
    single = [t.detach().requires_grad_() for t in (x, weights)]
    double = [t.detach().double().requires_grad_() for t in (x, weights)]
    found, expected = dynamic_depthwise(*single), dynamic_depthwise_reference(*double)
    bound = max(tolerance, torch.finfo(x.dtype).eps)
    assert found.dtype == x.dtype
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert_as_in_float64(found, expected, single, double, bound)


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
    weight = torch.randn(3, 8, 3, 3)
    check(x[:1], weight[:1])
    found = dynamic_depthwise(x, weight)
    assert torch.equal(found, dynamic_depthwise(x.contiguous(), weight))
    x, weight = x.detach().requires_grad_(), weight.requires_grad_()
    gradients = torch.autograd.grad(dynamic_depthwise(x, weight).square().sum(), (x, weight))
    for i in range(3):
        one = [t[i : i + 1].detach().requires_grad_() for t in (x, weight)]
        alone = dynamic_depthwise(*one)
        assert torch.equal(alone, found[i : i + 1])
        for a, b in zip(torch.autograd.grad(alone.square().sum(), one), gradients, strict=True):
            assert torch.equal(a, b[i : i + 1])


def agree(run, reference, inputs):
    """Values and gradients of what takes tensors."""
    single = [t.detach().requires_grad_() for t in inputs]
    double = [t.detach().double().requires_grad_() for t in inputs]
    found, expected = run(*single), reference(*double)
    bound = max(1e-5, torch.finfo(found.dtype).eps)
    assert found.dtype == inputs[0].dtype
    assert_as_in_float64(found, expected, single, double, bound)


@pytest.mark.parametrize(
    ('heads', 'width', 'sides', 'grid', 'leading', 'dtype'),
    [
        (2, 32, (9, 9), (4, 5), 0, torch.float32),
        (3, 8, (5, 3), (4, 5), 2, torch.float32),
        (3, 8, (3, 5), (4, 5), 1, torch.bfloat16),
        (1, 48, (1, 5), (1, 150), 0, torch.float16),
        (2, 64, (3, 3), (12, 11), 1, torch.float32),
    ],
)
def test_kernels_of_heads_are_added_to_tokens(heads, width, sides, grid, leading, dtype):
    """Of the values' half of a joint projection, of two images; tokens before the grid pass through."""
    tokens, channels = leading + grid[0] * grid[1], heads * width
    joint, y = torch.randn(2, tokens, 2 * channels).to(dtype), torch.randn(2, tokens, channels).to(dtype)
    weight = torch.randn(heads, 1, *sides).to(dtype)

    def run(y, joint, weight):
        with kernels('triton'):
            return add_head_convolution(y, joint[:, :, channels:], weight, grid)

    agree(run, lambda y, v, k: add_head_convolution_reference(y, v[:, :, channels:], k, grid), (y, joint, weight))
    found = run(y, joint, weight)
    assert torch.equal(found, run(y, joint, weight))
    assert torch.equal(found[1:], run(y[1:], joint[1:], weight))


@pytest.mark.parametrize('leading', [0, 3])
def test_predicted_kernels_are_added_to_tokens(leading):
    op, grid = add_predicted_convolution, (5, 6)
    y, v = torch.randn(2, leading + 30, 40), torch.randn(2, leading + 30, 40)

    def run(*tensors):
        with kernels('triton'):
            return op(*tensors, grid)

    agree(run, lambda *tensors: op.reference(*tensors, grid), (y, v, torch.randn(2, 40, 3, 3)))


def test_a_map_and_a_bias_are_added():
    y, x = (torch.randn(2, 6, 7, 40).permute(0, 3, 1, 2) for _ in range(2))

    def reference(y, x, weight, bias):
        return y + dynamic_depthwise_reference(x, weight) + bias.view(-1, 1, 1)

    agree(add_depthwise, reference, (y, x, torch.randn(2, 40, 3, 3), torch.randn(40)))
