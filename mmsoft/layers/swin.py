"""Torchvision's parts of Swin, called as this package's layers are.

Torchvision is there wherever torch is used for images; mmdet's windows shift on maps that are one window, and timm's
are cut for one image size.
"""

import math
from typing import cast

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torchvision.models import swin_transformer as swin

from mmsoft.ops import from_windows, to_multiples, to_windows
from mmsoft.ops.checks import choose
from mmsoft.ops.dispatch import is_symbol, loses_ranges

from .heads import grid_of

Shift = tuple[int | Tensor, int | Tensor]  # of rows and columns
SHIFTS = ('large', 'by_side', 'all')


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

    ``shift`` says which maps shifted layers shift: ``'large'`` ones, both of whose sides are longer than a window (the
    authors' classifiers); ``'by_side'`` the sides that are, padding included (torchvision); ``'all'`` (mmdet, mmseg).
    """

    relative_position_index: Tensor

    def __init__(self, dim: int, num_heads: int, window_size: int, shifted: bool, shift: str = 'large') -> None:
        step = window_size // 2 if shifted else 0
        super().__init__(dim, [window_size] * 2, [step] * 2, num_heads)
        self.shift = choose('shift', shift, SHIFTS)
        # published files have this constant as well, but, as in timm, nothing is gained by storing it
        self.register_buffer('relative_position_index', self.relative_position_index, persistent=False)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> the same shape."""
        (height, width), side = grid_of(x, grid), self.window_size[0]
        shift = self._shift_of(height, width)
        x = to_multiples(x.unflatten(1, (height, width)), side)
        sides = x.shape[1], x.shape[2]
        _check_example(sides, side)
        if _is_some(shift):
            x = _rolled(x, (-shift[0], -shift[1]))
        y = self._attend(to_windows(x, (side, side)).flatten(1, 2), sides, shift).unflatten(1, (side, side))
        y = from_windows(y, (sides[0] // side, sides[1] // side))
        if _is_some(shift):
            y = _rolled(y, shift)
        return y[:, :height, :width].flatten(1, 2)

    def _shift_of(self, height: int, width: int) -> Shift:
        """Of rows and columns."""
        side, step = self.window_size[0], self.shift_size[0]
        if not step:
            return 0, 0
        if self.shift == 'by_side':
            return step * _exceeds(height, side), step * _exceeds(width, side)
        if self.shift == 'large':
            both = step * _exceeds(height, side) * _exceeds(width, side)
            return both, both
        return step, step

    def _attend(self, x: Tensor, sides: tuple[int, int], shift: Shift) -> Tensor:
        """Windows (B * n, w * w, C) of a shifted map of these sides -> the same shape."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)  # (B * n, h, w * w, d)
        scores = (q * q.shape[-1] ** -0.5).matmul(k.transpose(-2, -1)) + self.get_relative_position_bias()
        if _is_some(shift):
            apart = self._apart(sides, shift, x.device)  # (n, w * w, w * w)
            scores = scores.unflatten(0, (-1, apart.shape[0])).masked_fill(apart.unsqueeze(1), -math.inf).flatten(0, 1)
        return self.proj(scores.softmax(-1).matmul(v).transpose(1, 2).flatten(2))

    def _apart(self, sides: tuple[int, int], shift: Shift, device: torch.device) -> Tensor:
        """Which pairs of tokens of a window (n, w * w, w * w) the shift brought there from different sides."""
        rows, columns = (torch.arange(n, device=device) >= n - step for n, step in zip(sides, shift, strict=True))
        origin = 2 * rows[:, None].int() + columns.int()  # (H, W)
        side = self.window_size[0]
        origin = to_windows(origin[None, :, :, None], (side, side)).flatten(1)  # (n, w * w)
        return origin.unsqueeze(1) != origin.unsqueeze(2)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, window_size={self.window_size[0]}, shift={self.shift_size[0]}'


def _check_example(sides: tuple[int, int], window: int) -> None:
    """Raise where a graph for any size would be right for maps of a single window alone.

    ONNX files have no range of sizes, and graphs that are made through dynamo come without the one that they need.
    """
    for side in sides if loses_ranges() else ():
        if not statically_known_true(side == window) and side == window:  # which says that it always is
            raise ValueError(
                f'at the size of these pictures a map is a single window of {window}, which torch would take for any '
                'size: make the graph from larger pictures, such as 256 x 256 for windows of 7; it takes small ones too'
            )


def _is_some(shift: Shift) -> bool:
    """Whether there may be a shift: of a map whose size is a symbol, the graph tells."""
    return any(isinstance(step, Tensor) or step for step in shift)


def _rolled(x: Tensor, shift: Shift) -> Tensor:
    """x (B, H, W, C) rolled by rows and columns."""
    if not any(isinstance(step, Tensor) for step in shift):
        return x.roll(cast(tuple[int, int], shift), (1, 2))
    for dim, step in enumerate(shift, 1):
        size = x.shape[dim]
        place = torch.arange(size, device=x.device) - step  # less than a map away
        place = torch.where(place < 0, place + size, place)
        x = x.index_select(dim, torch.where(place < size, place, place - size))
    return x


def _exceeds(size: int, bound: int) -> int | Tensor:
    """1 or 0; a number of the graph where the size is a symbol, so that neither is decided when it is made."""
    return (torch.scalar_tensor(size, dtype=torch.int64) > bound).long() if is_symbol(size) else int(size > bound)
