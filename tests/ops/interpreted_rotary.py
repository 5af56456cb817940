"""Turned features in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error

from mmsoft.ops import (
    explain,
    kernels,
    position_angles,
    rotary_attention,
    rotary_attention_reference,
    rotary_features,
    rotate,
    rotate_reference,
)
from mmsoft.ops.rotary import rotary_features_reference
from mmsoft.ops.triton.rotary import features

# batch, heads, width of a head, grid, leading tokens, whether heads turn alike
SHAPES = [(2, 3, 8, (5, 7), 0, False), (1, 2, 12, (3, 70), 1, True), (1, 1, 4, (9, 4), 2, True)]


def inputs(batch, heads, width, grid, leading, alike, dtype=torch.float32):
    """Heads of a joint projection, as they lie in memory, and angles."""
    count = leading + grid[0] * grid[1]
    joint = 3 * torch.randn(batch, count, 3 * heads * width).to(dtype)
    joint[:, ::4] = 0  # where the features' slope has a corner
    heads_of = [x.unflatten(-1, (heads, width)).transpose(1, 2) for x in joint.chunk(3, -1)]
    return heads_of, position_angles(grid, (width if alike else heads * width) // 4, alike)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_values_and_gradients(shape, dtype):
    (x, *_), angles = inputs(*shape, dtype)
    assert not x.is_contiguous()
    assert 'rotary_features: triton runs' in explain(rotary_features, x, *angles)
    single, double = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    found, expected = features(single, *angles), rotary_features_reference(double, *angles)
    assert [y.dtype for y in found] == [torch.float32] * 2
    weights = [torch.randn_like(y).transpose(1, 2).contiguous().transpose(1, 2) for y in expected]
    for y, one in zip(found, expected, strict=True):
        assert relative_error(y, one) < 1e-6
    for used in ([0, 1], [0], [1]):  # a result that nobody uses has no gradient
        exact = torch.autograd.grad([expected[i] for i in used], double, [weights[i] for i in used], retain_graph=True)
        own = torch.autograd.grad(
            [found[i] for i in used], single, [weights[i].float() for i in used], retain_graph=True
        )
        assert own[0].dtype == dtype
        assert relative_error(own[0], exact[0]) < max(1e-5, torch.finfo(dtype).eps)


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_turning_alone(shape, dtype):
    """Of RAVLT's softmax attention."""
    (x, *_), angles = inputs(*shape, dtype)
    assert 'rotate: triton runs' in explain(rotate, x, *angles)
    single, double = x.detach().requires_grad_(), x.detach().double().requires_grad_()
    found, expected = rotate(single, *angles), rotate_reference(double, *angles)
    assert found.dtype == torch.float32
    assert relative_error(found, expected) < 1e-6
    weight = torch.randn_like(expected)
    (own,), (exact,) = (
        torch.autograd.grad(y, leaf, weight.to(y.dtype)) for y, leaf in ((found, single), (expected, double))
    )
    assert own.dtype == dtype
    assert relative_error(own, exact) < max(1e-5, torch.finfo(dtype).eps)


@pytest.mark.parametrize('weighted', [False, True])
def test_attention_by_way_of_them(weighted):
    """Both families' operator, gradients included; no bit depends on the batch."""
    (q, k, v), angles = inputs(*SHAPES[0])
    tensors = [x.detach().requires_grad_() for x in (q, k, v)]
    doubles = [x.detach().double().requires_grad_() for x in (q, k, v)]
    with kernels('triton'):
        found = rotary_attention(*tensors, *angles, weighted)
    expected = rotary_attention_reference(*doubles, *angles, weighted)
    assert relative_error(found, expected) < 1e-5
    weight = torch.randn_like(expected)
    exact = torch.autograd.grad(expected, doubles, weight)
    for own, one in zip(torch.autograd.grad(found, tensors, weight.float()), exact, strict=True):
        assert relative_error(own, one) < 2e-5
    for both, alone in zip(features(q, *angles), features(q[1:], *angles), strict=True):
        assert torch.equal(both[1:], alone)


def test_what_does_not_fit_the_angles_is_declined():
    """The portable version refuses it; the kernel would leave channels out, or turn tokens that are not there."""
    rows, columns = position_angles((2, 3), 1, False)
    for shape in ((1, 4, 6, 3), (1, 1, 6, 2), (1, 2, 5, 4)):
        assert 'do not fit' in explain(rotate, torch.ones(shape), rows, columns)
        with pytest.raises((RuntimeError, ValueError)):
            rotate(torch.ones(shape), rows, columns)


def test_very_negative_values_are_finite():
    (x, *_), angles = inputs(*SHAPES[0], torch.float16)
    found = features(torch.full_like(x, -6e4), *angles)
    assert all(y.isfinite().all() for y in found)
    assert features(torch.full_like(x, -20.0), *angles)[0].min() > 0  # where float16 has 0
