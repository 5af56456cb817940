"""Attentions whose queries and keys are turned by position: MILA's, and RALA's with its softmax twin."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import position_angles, rotary_attention, rotate, softmax_attention, to_map, to_tokens

from .heads import grid_of, split_evenly
from .linear import Linear


class RotaryAttention(nn.Module):
    """What both share: heads, and a depth-wise convolution of the values (``lepe``) over the grid."""

    def __init__(self, dim: int, num_heads: int, kernel: int) -> None:
        super().__init__()
        self.num_heads = split_evenly(dim, num_heads)
        self.lepe = nn.Conv2d(dim, dim, kernel, padding=kernel // 2, groups=dim)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, h, N, d)

    def _with_lepe(self, y: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
        """Heads y (B, h, T + H * W, d), joined, and the convolution of v (B, T + H * W, C) -> (B, T + H * W, C)."""
        leading = v.shape[1] - grid[0] * grid[1]
        local = to_tokens(self.lepe(to_map(v[:, leading:], grid)))
        return y.transpose(1, 2).flatten(2) + (F.pad(local, (0, 0, leading, 0)) if leading else local)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}'


class Unprojected(nn.Module):
    """In the place of a projection that an attention does not have, for hooks; the width as nn.Linear tells it."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.in_features = dim

    def forward(self, x: Tensor) -> Tensor:
        """x itself, as a tensor of its own, whose gradient is that of this use alone."""
        return x.view_as(x)


class MILAAttention(RotaryAttention):
    """MILA's token mixing: the values are the tokens themselves, and nothing is projected after it.

    All channels turn by frequencies of their own, the first half with the row, the last half with the column.
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__(dim, num_heads, 3)
        if dim % 4 or dim // num_heads % 2:
            raise ValueError(
                f'MILA turns pairs of channels: dim ({dim}) must be a multiple of 4, and of 2 num_heads ({num_heads})'
            )
        self.frequencies = dim // 4
        self.qk = Linear(dim, 2 * dim)
        self.v, self.proj = Unprojected(dim), Unprojected(dim)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid = grid_of(x, grid)
        q, k = self.qk(x).chunk(2, -1)
        angles = position_angles(grid, self.frequencies, False, x.device)
        v = self.v(x)
        y = rotary_attention(self._split(q), self._split(k), self._split(v), *angles)
        return self.proj(self._with_lepe(y, v, grid))


class RALAAttention(RotaryAttention):
    """RALA: keys are weighted by what queries see on average, and the output is gated by a projection of the input.

    ``softmax`` takes softmax attention between turned queries and keys instead, with the same parameters. All heads
    turn alike, each with its first half by the row and its last half by the column.
    """

    def __init__(self, dim: int, num_heads: int, softmax: bool = False) -> None:
        super().__init__(dim, num_heads, 5)
        if dim % (4 * num_heads):
            raise ValueError(
                f'RALA turns pairs of channels of both halves of a head: dim ({dim}) must be a multiple of 4 num_heads '
                f'({num_heads})'
            )
        self.softmax, self.frequencies = softmax, dim // (4 * num_heads)
        self.qkvo = Linear(dim, 4 * dim)
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid = grid_of(x, grid)
        q, k, v, gate = self.qkvo(x).chunk(4, -1)
        angles = position_angles(grid, self.frequencies, True, x.device)
        heads = self._split(q), self._split(k), self._split(v)
        if self.softmax:
            q, k = (rotate(heads[i], *angles).to(v.dtype) for i in (0, 1))
            y = softmax_attention(q, k, heads[2])
        else:
            y = rotary_attention(*heads, *angles, weighted=True)
        return self.proj(self._with_lepe(y, v, grid) * gate)

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, softmax={self.softmax}'
