"""Window, stripe and whole-map attention, patch merging and the simple pyramid, by their definitions."""

import pytest
import torch
import torch.nn.functional as F
from helpers import relative_error

from mmsoft.layers import (
    CrossShapedAttention,
    CSwinBlock,
    GlobalBranch,
    InLineBranch,
    Mlp,
    PatchEmbed,
    PatchMerging,
    SimplePyramid,
    StripeBranch,
    WindowAttention,
)
from mmsoft.layers.swin import _rolled
from mmsoft.layers.window_conv import WindowConv
from mmsoft.models import InLineCSwin, InLineSwin
from mmsoft.ops import from_windows, inline_attention_reference, to_windows


def heads_of(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)  # (..., N, C) -> (..., h, N, d)


@pytest.mark.parametrize('grid', [(14, 21), (8, 20), (7, 30), (5, 30), (3, 3), (15, 15)])
@pytest.mark.parametrize('shifted', [False, True])
def test_windows_are_those_of_the_definition(grid, shifted):
    """Pair by pair: tokens see each other in one window, unless the shift brought them there from other sides."""
    window, heads, dim = 7, 2, 8
    layer = WindowAttention(dim, heads, window, shifted).double()
    assert set(layer.state_dict()) == {
        'qkv.weight', 'qkv.bias', 'proj.weight', 'proj.bias', 'relative_position_bias_table'
    }  # fmt: skip
    x = torch.randn(2, grid[0] * grid[1], dim, dtype=torch.float64)
    height, width = (-(-side // window) * window for side in grid)
    padded = F.pad(x.unflatten(1, grid), (0, 0, 0, width - grid[1], 0, height - grid[0])).flatten(1, 2)
    shift = 3 if shifted and min(grid) > window else 0
    row, column = (t.flatten() for t in torch.meshgrid(torch.arange(height), torch.arange(width), indexing='ij'))

    def places(at, size):
        """Which window of the shifted map a row or column is in, and whether it came from the other side."""
        moved = (at - shift) % size
        return moved // window, (moved >= size - shift).long()

    (window_row, wrapped_row), (window_column, wrapped_column) = places(row, height), places(column, width)
    kinds = torch.stack((window_row, window_column, wrapped_row, wrapped_column), -1)
    together = (kinds[:, None] == kinds[None]).all(-1)
    near_r, near_c = (
        d.clamp(1 - window, window - 1) + window - 1 for d in (row[:, None] - row, column[:, None] - column)
    )
    bias = layer.relative_position_bias_table[near_r * (2 * window - 1) + near_c].permute(2, 0, 1)
    q, k, v = (heads_of(part, heads) for part in layer.qkv(padded).chunk(3, -1))
    scores = q @ k.transpose(-1, -2) / (dim // heads) ** 0.5 + bias
    y = scores.masked_fill(~together, -1e9).softmax(-1) @ v
    y = layer.proj(y.transpose(1, 2).flatten(2)).unflatten(1, (height, width))[:, : grid[0], : grid[1]]
    assert relative_error(layer(x, grid), y.flatten(1, 2)) < 1e-10


def test_windows_are_cut_and_joined():
    x = torch.arange(2 * 6 * 8 * 3.0).view(2, 6, 8, 3)
    windows = to_windows(x, (3, 2))
    assert windows.shape == (2 * 2 * 4, 3, 2, 3)
    assert torch.equal(windows[1 * 8 + 1 * 4 + 2], x[1, 3:6, 4:6])
    assert torch.equal(from_windows(windows, (2, 4)), x)


@pytest.mark.parametrize('grid', [(14, 21), (8, 20), (3, 30), (7, 7)])
def test_stripes_are_those_of_the_definition(grid):
    split, dim, heads = 7, 16, 4
    branches = [StripeBranch(dim // 2, heads // 2, split, vertical) for vertical in (True, False)]
    layer = CrossShapedAttention(dim, branches, split).double()
    x = torch.randn(2, grid[0] * grid[1], dim, dtype=torch.float64)
    height, width = (-(-side // split) * split for side in grid)
    q, k, v = layer.qkv(F.pad(x.unflatten(1, grid), (0, 0, 0, width - grid[1], 0, height - grid[0]))).chunk(3, -1)
    halves = []
    for half, vertical, branch in ((slice(0, 8), True, branches[0]), (slice(8, 16), False, branches[1])):
        y = torch.empty(2, height, width, 8, dtype=torch.float64)
        for start in range(0, width if vertical else height, split):
            at = (slice(None), slice(start, start + split)) if vertical else (slice(start, start + split), slice(None))
            part = [t[..., half][:, at[0], at[1]] for t in (q, k, v)]
            qs, ks, vs = (heads_of(t.flatten(1, 2), 2) for t in part)
            attended = (qs @ ks.transpose(-1, -2) / 2).softmax(-1) @ vs
            local = branch.lepe(part[2].permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            y[:, at[0], at[1]] = attended.transpose(1, 2).flatten(2).view(part[2].shape) + local
        halves.append(y)
    expected = layer.proj(torch.cat(halves, -1)[:, : grid[0], : grid[1]].flatten(1, 2))
    assert relative_error(layer(x, grid), expected) < 1e-10


def test_whole_map_attention_is_exact_up_to_the_bound_and_averages_beyond():
    branch, unbounded = GlobalBranch(16, 2, 64), GlobalBranch(16, 2, 10**6)
    unbounded.load_state_dict(branch.state_dict())
    q, k, v = torch.randn(3, 2, 8, 8, 16).unbind()
    assert torch.equal(branch(torch.stack((q, k, v), -2), q), unbounded(torch.stack((q, k, v), -2), q))
    scores = heads_of(q.flatten(1, 2), 2) @ heads_of(k.flatten(1, 2), 2).transpose(-1, -2) / 8**0.5
    y = (scores.softmax(-1) @ heads_of(v.flatten(1, 2), 2)).transpose(1, 2).flatten(2).view(v.shape)
    y = y + branch.lepe(v.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    assert relative_error(branch(torch.stack((q, k, v), -2), q), y) < 1e-5
    # what is constant over 2 x 2 patches loses nothing by being averaged
    k, v = (torch.randn(2, 4, 8, 16).repeat_interleave(2, 1).repeat_interleave(2, 2) for _ in range(2))
    q = torch.randn(2, 8, 16, 16)
    assert relative_error(branch(torch.stack((q, k, v), -2), q), unbounded(torch.stack((q, k, v), -2), q)) < 1e-5


def test_cswin_predicts_kernels_from_what_comes_before_the_norm():
    attn = CrossShapedAttention(8, [InLineBranch(8, 2)]).double()
    block = CSwinBlock(8, attn, Mlp(8, 16), 0.0, eps=1e-5).double()
    x, branch = 3 * torch.randn(2, 5 * 6, 8, dtype=torch.float64), attn.branches[0]
    q, k, v = (heads_of(t, 2) for t in attn.qkv(block.norm1(x)).chunk(3, -1))
    y = inline_attention_reference(q, k, v).transpose(1, 2).flatten(2)
    values = v.transpose(1, 2).flatten(2).unflatten(1, (5, 6)).permute(0, 3, 1, 2)
    kernels = branch.predictor[2](F.gelu(branch.predictor[0](x.mean(1)[..., None]))).view(2, 8, 1, 3, 3)
    local = torch.stack([F.conv2d(v, w, padding=1, groups=8) for v, w in zip(values, kernels, strict=True)])
    y = attn.proj(y + (local + branch.lepe(values)).flatten(2).transpose(1, 2))
    y = x + y
    assert relative_error(block(x, (5, 6)), y + block.mlp(block.norm2(y))) < 1e-10


@pytest.mark.parametrize('size', [(8, 12), (7, 5), (1, 1)])
def test_merging_is_torchvisions(size):
    layer = PatchMerging(6)
    x = torch.randn(2, 6, *size)
    expected = super(PatchMerging, layer).forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
    assert relative_error(layer(x), expected) < 1e-6


@pytest.mark.parametrize(('kernel', 'stride'), [(4, 4), (2, 2), (7, 4), (3, 2), (16, 16)])
def test_patches_cover_every_size(kernel, stride):
    embed = PatchEmbed(3, 8, kernel, stride)
    for size in [(stride, 3 * stride), (stride + 1, 1), (3 * stride - 1, 2 * stride + 1)]:
        x = torch.randn(1, 3, *size, requires_grad=True)
        y = embed(x)
        assert y.shape == (1, 8, -(-size[0] // stride), -(-size[1] // stride))
        (gradient,) = torch.autograd.grad(y[:, 0].sum(), x)
        assert (gradient != 0).all()  # every pixel is seen
        assert y.mean(1).abs().max() < 1e-5  # normalised over channels


def test_a_pyramid_from_one_map():
    pyramid = SimplePyramid(16, (0, 1, 2, 3))
    x = torch.randn(2, 16, 5, 7)
    maps = pyramid(x)
    assert [tuple(m.shape) for m in maps] == [(2, 4, 20, 28), (2, 8, 10, 14), (2, 16, 5, 7), (2, 16, 3, 4)]
    assert torch.equal(maps[2], x)
    assert torch.equal(maps[3][:, :, :2, :3], F.max_pool2d(x, 2))
    part = SimplePyramid(16, (1, 3))
    part.load_state_dict(pyramid.state_dict(), strict=False)
    assert all(map(torch.equal, part(x), maps[1::2]))


def test_bad_architectures_are_named():
    arch = dict(dims=(16, 32, 64, 128), heads=(1, 2, 4, 8), depths=(1, 1, 2, 1))
    for model, options, message in (
        (InLineSwin, dict(arch | dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4))), 'dims must double'),
        (InLineSwin, dict(arch | dict(inline=(1, 1, 3, 0))), r'inline counts layers of depths \(1, 1, 2, 1\); got'),
        (
            InLineSwin,
            dict(arch | dict(inline=(1, 1))),
            'arch inline must be integers of 0 or more, one for each',
        ),
        (InLineCSwin, dict(arch | dict(heads=(1, 1, 1, 1))), r'arch stage 3: heads \(1\) must be even'),
    ):
        with pytest.raises(ValueError, match=message):
            model(options)
    mixed = InLineSwin(arch | dict(inline=(0, 1, 1, 1)))
    kinds = [type(stage.blocks[0].attn).__name__ for stage in mixed.stages]
    assert kinds == ['WindowAttention', *['InLineAttention'] * 3]
    assert InLineSwin(arch).arch.inline == (1, 1, 2, 0)
    assert InLineCSwin(arch | dict(heads=(1, 2, 4, 8))).arch.inline == (1, 1, 0, 0)


@pytest.mark.parametrize('dtype', [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(('channels', 'window'), [(8, 8), (16, 4), (32, (1, 3)), (28, (8, 5))])
def test_window_convolution_equals_torchs_in_float64(channels, window, dtype):
    conv = WindowConv(channels, 12, window).to(dtype)
    x = torch.randn(2, channels, 33, 41, dtype=dtype).requires_grad_()
    leaves = [leaf.detach().double().requires_grad_() for leaf in (x, conv.weight, conv.bias)]
    expected = F.conv2d(*leaves, stride=conv.stride)
    found = conv(x)
    upstream = torch.randn(expected.shape).to(dtype)
    expected.backward(upstream.double())
    found.backward(upstream)
    bound = 1e-12 if dtype is torch.float64 else 2e-2  # where oneDNN errs, it is by 100 %
    assert relative_error(found, expected) < bound
    for ours, theirs in zip((x, conv.weight, conv.bias), leaves, strict=True):
        assert relative_error(ours.grad, theirs.grad) < bound


@pytest.mark.parametrize('shift', [(3, -3), (0, 2)])
def test_a_shift_of_the_graph_is_torchs_roll(shift):
    x = torch.randn(2, 5, 8, 3)
    assert torch.equal(_rolled(x, tuple(map(torch.tensor, shift))), x.roll(shift, (1, 2)))
