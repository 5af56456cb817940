"""Torchvision's parts of Swin, called as this package's layers are.

Torchvision is there wherever torch is used for images; mmdet's windows shift on maps that are one window, and timm's
are cut for one image size.
"""

from torch import Tensor
from torchvision.models import swin_transformer as swin

from mmsoft.ops import to_multiples

from .heads import grid_of


class PatchMerging(swin.PatchMerging):
    """2 x 2 pixels become one of twice the channels; a map of odd sides is zero-padded at the right and bottom."""

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, 2 C, H / 2, W / 2), rounded up."""
        # the parent's forward, for maps, with the padding that torch.compile follows where sizes are symbols
        x = to_multiples(x.permute(0, 2, 3, 1), 2)
        x = x.unflatten(2, (-1, 2)).unflatten(1, (-1, 2))  # (B, H / 2, 2, W / 2, 2, C)
        x = x.permute(0, 1, 3, 4, 2, 5).flatten(3)  # (row, column) = (0, 0), (1, 0), (0, 1), (1, 1)
        return self.reduction(self.norm(x)).permute(0, 3, 1, 2)


class WindowAttention(swin.ShiftedWindowAttention):
    """Softmax attention in windows, every other layer shifted by half a window; the map is zero-padded to whole ones.

    Maps whose shorter side is at most a window are not shifted.
    """

    def __init__(self, dim: int, num_heads: int, window_size: int, shifted: bool) -> None:
        shift = window_size // 2 if shifted else 0
        super().__init__(dim, [window_size] * 2, [shift] * 2, num_heads)
        # published files have this constant as well, but, as in timm, nothing is gained by storing it
        self.register_buffer('relative_position_index', self.relative_position_index, persistent=False)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        grid, side = grid_of(x, grid), self.window_size[0]
        y = swin.shifted_window_attention(
            # whole windows already: torchvision's own arithmetic takes torch.compile minutes where sizes are symbols
            to_multiples(x.unflatten(1, grid), side),
            self.qkv.weight,
            self.proj.weight,
            self.get_relative_position_bias(),
            self.window_size,
            self.num_heads,
            shift_size=[0, 0] if min(grid) <= side else self.shift_size,
            qkv_bias=self.qkv.bias,
            proj_bias=self.proj.bias,
        )
        return y[:, : grid[0], : grid[1]].flatten(1, 2)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, window_size={self.window_size[0]}, shift={self.shift_size[0]}'
