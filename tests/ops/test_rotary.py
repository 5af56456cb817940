"""Rotary attention and what MILA and RAVLT need beside it: every road against the definition."""

import math

import pytest
import torch
from helpers import relative_error
from torch import nn

from mmsoft.ops import (
    add_convolved,
    explain,
    kernels,
    position_angles,
    position_frequencies,
    rotary,
    rotary_attention,
    rotary_attention_reference,
    rotate,
    rotate_reference,
    squeezed_convolution,
)
from mmsoft.ops.dispatch import PORTABLE

# batch, heads, width of a head, grid, leading tokens, whether heads turn alike
SHAPES = [(2, 3, 8, (5, 7), 0, False), (1, 2, 8, (13, 27), 1, True), (3, 1, 4, (9, 4), 2, True)]


def inputs(batch, heads, width, grid, leading, alike):
    count = leading + grid[0] * grid[1]
    q, k, v = (3 * torch.randn(batch, count, heads, width).transpose(1, 2) for _ in range(3))
    return q, k, v, *position_angles(grid, (width if alike else heads * width) // 4, alike)


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_rotary_attention_is_the_definition(shape, weighted, monkeypatch):
    monkeypatch.setattr(rotary, 'SLICE', 200)  # many slices, the last of them shorter
    tensors = inputs(*shape)
    expected = rotary_attention_reference(*tensors, weighted)
    for kind in (None, PORTABLE):
        with kernels(kind):
            assert relative_error(rotary_attention(*tensors, weighted), expected) < 1e-5
    contiguous = [x.contiguous() for x in tensors[:3]]  # heads apart in memory
    assert relative_error(rotary_attention(*contiguous, *tensors[3:], weighted), expected) < 1e-5
    assert relative_error(rotate(tensors[0], *tensors[3:]), rotate_reference(tensors[0], *tensors[3:])) < 1e-6
    wide = [x[:, :, :9].double().requires_grad_() for x in tensors[:3]]
    angles = [angle.double() for angle in position_angles((2, 4), tensors[3].shape[1], shape[-1])]
    assert torch.autograd.gradcheck(lambda q, k, v: rotary_attention(q, k, v, *angles, weighted), wide)


def test_slices_are_for_passes_without_gradients():
    q, k, v, *angles = inputs(*SHAPES[0])
    if q.device.type == 'cpu':
        assert 'rotary_attention: cpu runs' in explain(rotary_attention, q, k, v, *angles)
    assert 'portable runs; cpu declines' in explain(rotary_attention, q.requires_grad_(), k, v, *angles)
    with pytest.raises(ValueError, match=r'4 K a divisor of h d; got q \(2, 3, 35, 8\)'):
        rotary_attention(q, k, v, *position_angles((5, 7), 5, True))


def test_the_features_slope_at_0_is_1():
    """As that of elu, and of the kernel: zeros are common where tokens are padded or dropped."""
    x = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(rotary.positive(x).sum(), x)
    assert slope.tolist() == pytest.approx([math.exp(-1), 1, 1])


@pytest.mark.parametrize('kind', [None, PORTABLE])
@pytest.mark.parametrize('weighted', [False, True])
def test_features_next_to_nothing_keep_their_digits(weighted, kind):
    """``elu(q) + 1`` has none left for such queries: 7 % off in float32, and 0 in float16."""
    q, k, v, *angles = inputs(*SHAPES[0])
    q, k = q / 6 - 14, k / 6 - 3
    with kernels(kind):
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float16, 1e-3)):
            tensors = [x.to(dtype) for x in (q, k, v)]
            expected = rotary_attention_reference(*tensors, *angles, weighted)
            assert relative_error(rotary_attention(*tensors, *angles, weighted), expected) < tolerance


@pytest.mark.parametrize('kind', [None, PORTABLE])
@pytest.mark.parametrize('weighted', [False, True])
def test_a_millionth_is_added_to_a_querys_sum(weighted, kind):
    """Of one token that does not turn: ``y = s / (s + 1e-6) v`` with ``s = 8 exp(-14)``."""
    v, angles = torch.ones(1, 1, 1, 8), position_angles((1, 1), 2, True)
    with kernels(kind):
        y = rotary_attention(-14 * v, 0 * v, v, *angles, weighted)
    assert y.flatten().tolist() == pytest.approx([8 * math.exp(-14) / (8 * math.exp(-14) + 1e-6)] * 8)


@pytest.mark.parametrize('kind', [None, PORTABLE])
def test_outputs_beyond_float16_are_its_largest(kind):
    """Weights of a query sum to more than 1 where turning makes some of them negative."""
    q, k, _, *angles = (x.half() if x.dim() == 4 else x for x in inputs(*SHAPES[0]))
    v = torch.full_like(q, 6e4)
    with kernels(kind):
        found = rotary_attention(4 * q, 4 * k, v, *angles)
    expected = rotary_attention_reference(4 * q, 4 * k, v, *angles)
    assert expected.abs().max() > 66000
    assert relative_error(found, expected.clamp(-65504, 65504)) < 1e-3


@pytest.mark.parametrize('place', [0, -1])
def test_keys_that_queries_see_most_drown_the_others(place, monkeypatch):
    """The softmax of scores in the thousands is finite, in any order of slices."""
    monkeypatch.setattr(rotary, 'SLICE', 64)  # a row
    q, k, v, *angles = inputs(1, 1, 8, (6, 7), 0, True)
    k[:, :, place] = 1e4
    found = rotary_attention(1e3 + q, k, v, *angles, True)
    assert relative_error(found, rotary_attention_reference(1e3 + q, k, v, *angles, True)) < 1e-4


def test_slices_know_the_sum_of_all_weights(monkeypatch):
    """It cancels but for the millionth, which a query of next to nothing sees; slices weigh more and more."""
    monkeypatch.setattr(rotary, 'SLICE', 64)
    q, k, v, *angles = inputs(1, 1, 8, (6, 7), 0, True)
    q[:, :, -1] = -14
    k = k / 3 + torch.arange(42.0)[:, None] / 8
    found, expected = (attend(q, k, v, *angles, True) for attend in (rotary_attention, rotary_attention_reference))
    assert relative_error(found[:, :, -1], expected[:, :, -1]) < 1e-4


def test_frequencies_end_where_the_papers_say():
    assert torch.allclose(position_frequencies(3, True), torch.tensor([1, 1e-2, 1e-4]))
    assert torch.allclose(position_frequencies(2, False), torch.tensor([1, 1e-2]))
    assert torch.equal(position_frequencies(1, True), torch.ones(1))
    rows, columns = position_angles((3, 2), 2, False)
    assert rows.dtype == torch.float32
    assert torch.allclose(rows[2], torch.tensor([2, 2e-2]))
    assert columns.shape == (2, 2)


def test_convolutions_by_slices_and_in_one_pass_are_the_plain_ones():
    x = torch.randn(2, 6, 9, 7)
    expand, spread, squeeze = nn.Conv2d(6, 20, 1), nn.Conv2d(20, 20, 3, 2, 1, groups=20), nn.Conv2d(20, 5, 1)
    plain = squeeze(spread(expand(x).relu()).relu())
    assert relative_error(squeezed_convolution(x, expand, spread, squeeze), plain) < 1e-6
    with torch.no_grad():
        assert relative_error(squeezed_convolution(x, expand, spread, squeeze), plain) < 1e-5
    conv = nn.Conv2d(6, 6, (3, 5), padding=(1, 2), groups=6)
    results = []
    for kind in (None, PORTABLE):
        with kernels(kind):
            y = add_convolved(x.requires_grad_(), conv)
        results.append([y, *torch.autograd.grad(y.square().sum(), [x, conv.weight, conv.bias])])
    assert relative_error(results[0][0], x + conv(x)) < 1e-6
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(*results, strict=True))
    conv.register_forward_hook(lambda module, args, output: 2 * output)
    assert relative_error(add_convolved(x, conv), x + conv(x)) < 1e-6
