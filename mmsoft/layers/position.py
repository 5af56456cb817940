"""Learned position tables that follow the map's size."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.dispatch import is_symbol


class PositionTable(nn.Module):
    """A learned (1, h, w, C) table, resized bilinearly to the map that it is added to."""

    def __init__(self, grid: tuple[int, int], dim: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(1, *grid, dim))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> the same shape."""
        return x + resize_table(self.table, (x.shape[2], x.shape[3])).permute(0, 3, 1, 2)


def resize_table(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """(1, h, w, C) -> (1, H, W, C), bilinear with corners not aligned; unchanged if the size is."""
    if not is_symbol(*grid) and (table.shape[1], table.shape[2]) == grid:
        return table
    table = F.interpolate(table.permute(0, 3, 1, 2), size=grid, mode='bilinear', align_corners=False)
    return table.permute(0, 2, 3, 1)
