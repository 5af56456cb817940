"""The linear layer with its GELU in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import assert_as_in_float64, relative_error
from torch import nn

from mmsoft.layers import Mlp
from mmsoft.ops import explain, kernels, linear_gelu
from mmsoft.ops.linear_gelu import linear_gelu_reference
from mmsoft.ops.triton import linear_gelu as triton_road


def make(n, c, k, dtype=torch.float32):
    return [t.to(dtype) for t in (torch.randn(n, c), torch.randn(k, c) / c**0.5, torch.randn(k))]


@pytest.mark.parametrize('approximate', ['none', 'tanh'])
@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('shape', [(1, 8, 12), (70, 96, 130), (300, 33, 7)], ids=str)
def test_values_and_gradients(shape, dtype, approximate):
    inputs = make(*shape, dtype)
    single = [t.requires_grad_() for t in inputs]
    double = [t.detach().double().requires_grad_() for t in inputs]
    found, hidden = triton_road.linear_gelu(*single, approximate == 'tanh', True)
    expected = linear_gelu_reference(*double, approximate)
    bound = max(1e-5, 4 * torch.finfo(dtype).eps)
    assert found.dtype == hidden.dtype == dtype
    assert_as_in_float64(found, expected, single, double, bound)


def test_strides_batches_and_runs():
    """Every other row, of channels that are part of wider ones; no bit depends on the other tokens or the run."""
    wide, weight, bias = torch.randn(150, 64), torch.randn(50, 24), torch.randn(50)
    x = wide[::2, 20:44]

    def run(x):
        return triton_road.linear_gelu(x, weight, bias, False, False)[0]

    found = run(x)
    assert torch.equal(found, run(x.contiguous()))
    assert torch.equal(found, run(x.t().contiguous().t()))
    assert torch.equal(found[64:], run(x[64:]))


def test_an_mlp_is_the_portable_one_and_hooks_are_called():
    mlp, x = Mlp(16, 40), torch.randn(2, 30, 16)
    results = []
    for kind in ('triton', 'portable'):
        mlp.zero_grad()
        with kernels(kind):
            y = mlp(x)
            y.square().sum().backward()
        results.append((y, *(p.grad.clone() for p in mlp.parameters())))
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-5
    arguments = x, mlp.fc1, type(mlp.fc1), 'none'
    assert 'triton runs' in explain(linear_gelu, *arguments)
    assert 'something else stands' in explain(linear_gelu, x, nn.Sequential(mlp.fc1), type(mlp.fc1), 'none')
    assert 'wider than 256' in explain(linear_gelu, torch.randn(3, 300), nn.Linear(300, 4), nn.Linear, 'none')
    handle = mlp.fc1.register_forward_hook(lambda *_: None)
    assert 'hooks hang on the layer' in explain(linear_gelu, *arguments)
    handle.remove()
