"""What exported programs compute in a way of their own, against what eager code computes."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from helpers import exports_whole_models, relative_error
from torch import nn
from torch.export import Dim

from mmsoft.layers.block import Mlp
from mmsoft.ops import average_beyond, position_angles, rotate, slices, softmax, softmax_attention

BATCHES = ({0: Dim('batch', min=1, max=9)},)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.mlp = Mlp(12, 40)

    def forward(self, x):
        return self.function(self, x)


def program_of(function, x):
    """The program for any number of pictures, after its answers were compared; and how often it has which operator."""
    module = Calls(function).eval()
    with torch.no_grad():
        program = torch.export.export(module, (x,), dynamic_shapes=BATCHES, strict=False)
        for images in (x, torch.randn(5, *x.shape[1:])):
            assert relative_error(program.module()(images), module(images)) < 1e-5
    return Counter(getattr(node.target, '__name__', '') for node in program.graph.nodes)


@exports_whole_models
def test_averages_are_products_without_a_gather():
    counts = program_of(lambda _, x: average_beyond(x, 40, 24), torch.randn(2, 3, 11, 13))
    assert counts['matmul.default'] == 2
    assert not any('pool' in name or 'gather' in name for name in counts)
    assert program_of(lambda _, x: average_beyond(x, 143, 24), torch.randn(2, 3, 11, 13))['matmul.default'] == 0


@exports_whole_models
@pytest.mark.parametrize(('tokens', 'count'), [(10, 1), (11, 2), (33, 4)])
def test_an_mlp_is_written_as_slices(tokens, count, monkeypatch):
    monkeypatch.setattr(slices, 'EXPORTED_SLICE', 400)
    counts = program_of(lambda module, x: module.mlp(x), torch.randn(2, tokens, 12))
    assert counts['linear.default'] == 2 * count


@exports_whole_models
@pytest.mark.parametrize(('most', 'count'), [(5 * 7 * 7, 1), (2 * 7 * 7, 3), (1, 5)])
def test_softmax_attention_is_written_as_groups_of_heads(most, count, monkeypatch):
    monkeypatch.setattr(softmax, 'EXPORTED_WEIGHTS', most)

    def attend(_, x):
        heads = x.unflatten(2, (5, 4)).transpose(1, 2)
        return softmax_attention(heads, heads, heads + 1, torch.arange(7.0).view(1, 7))

    counts = program_of(attend, torch.randn(2, 7, 20))
    assert counts['scaled_dot_product_attention.default'] == count


@exports_whole_models
@pytest.mark.parametrize('leading', [0, 2])
@pytest.mark.parametrize('alike', [False, True])
def test_turning_holds_no_table_of_all_tokens(leading, alike):
    grid, heads, width = (5, 3), 2, 8

    def turn(_, x):
        angles = position_angles(grid, (width if alike else heads * width) // 4, alike)
        return rotate(x.unflatten(2, (heads, width)).transpose(1, 2), *angles)

    x = torch.randn(2, leading + 15, heads * width)
    program_of(turn, x)
    module = Calls(turn)
    program = torch.export.export(module, (x,), strict=False)
    cosines = [node.meta['val'] for node in program.graph.nodes if 'cos' in node.name]
    assert [value.numel() for value in cosines] == [side * (4 if not alike else 2) for side in grid]


@exports_whole_models
def test_open_sizes_are_left_whole(monkeypatch):
    monkeypatch.setattr(slices, 'EXPORTED_SLICE', 40)
    monkeypatch.setattr(softmax, 'EXPORTED_WEIGHTS', 40)

    def run(module, x):
        y = module.mlp(x)[:, None]
        return F.relu(softmax_attention(y, y, y))

    sizes = ({1: Dim('tokens', min=2, max=99)},)
    options = dict(dynamic_shapes=sizes, strict=False)
    program = torch.export.export(Calls(run).eval(), (torch.randn(1, 7, 12),), **options)
    counts = Counter(getattr(node.target, '__name__', '') for node in program.graph.nodes)
    assert counts['linear.default'] == 2
    assert counts['scaled_dot_product_attention.default'] == 1
