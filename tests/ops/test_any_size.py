"""Graphs whose height and width are symbols compute the landmark grid as eager code does, at every size."""

import pytest
import torch
from helpers import exports_whole_models
from torch import nn
from torch.export import Dim

from mmsoft.ops import average_beyond, bounded_grid, to_landmark_windows
from mmsoft.ops.landmarks import _bounded_grid_in_graph

SIDES = [1, 2, 3, 5, 7, 8, 13, 25, 56, 57, 100, 128, 200, 336, 999]


@pytest.mark.parametrize('limit', [1, 36, 49, 64, 1024])
def test_the_grid_of_tensors_is_the_grid_of_numbers(limit):
    for height in SIDES:
        for width in SIDES:
            found = _bounded_grid_in_graph((torch.tensor(height), torch.tensor(width)), limit)
            assert tuple(map(int, found)) == bounded_grid(height, width, limit), (height, width)


class Both(nn.Module):
    def forward(self, x):
        return to_landmark_windows(x, (4, 4), 49), average_beyond(x, 100, 50)


@exports_whole_models
def test_one_graph_serves_every_size():
    shapes = ({2: Dim('height', min=1, max=1000), 3: Dim('width', min=1, max=1000)},)
    options = dict(dynamic_shapes=shapes, strict=False, prefer_deferred_runtime_asserts_over_guards=True)
    graph = torch.export.export(Both(), (torch.randn(1, 2, 33, 47),), **options).module()
    for size in [(1, 9), (3, 3), (8, 12), (10, 10), (28, 28), (29, 28), (200, 61), (7, 500)]:
        x = torch.randn(1, 2, *size)
        for found, expected in zip(graph(x), Both()(x), strict=True):
            rows, columns = found.shape[-2:]  # what fills no window is left out, as the window's convolution does
            torch.testing.assert_close(found, expected[..., :rows, :columns], rtol=1e-5, atol=1e-6)
