"""PolaFormer's attention: positive and negative parts of queries and keys meet separately, after learned powers.

Meng et al., "PolaFormer: Polarity-aware Linear Attention for Vision Transformers", ICLR 2025.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import linear_attention, to_map, to_tokens
from mmsoft.ops.checks import compute_dtype

from .heads import grid_of, split_evenly
from .linear import Linear
from .position import PositionTable

EPSILON = 1e-6  # added to a query's sum of weights
LARGEST = 1e15  # of a feature: products of two stay within float32


class PolaFormerAttention(nn.Module):
    """The first half of a head's values meets parts of equal sign, the last half those of opposite sign.

    Keys have a position table, which is resized to other grids than ``grid``. One depth-wise 5 x 5 convolution of the
    values, shared by the heads, is added, and a projection of the input gates the output.
    """

    def __init__(self, dim: int, num_heads: int, grid: tuple[int, int]) -> None:
        super().__init__()
        self.num_heads, width = split_evenly(dim, num_heads), dim // num_heads
        if width % 2:
            raise ValueError(f'PolaFormer halves heads: dim ({dim}) must be a multiple of 2 num_heads ({num_heads})')
        self.qg = Linear(dim, 2 * dim)
        self.kv = Linear(dim, 2 * dim)
        self.proj = Linear(dim, dim)
        self.dwc = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.scale = nn.Parameter(torch.zeros(1, 1, dim))
        self.power = nn.Parameter(torch.zeros(1, num_heads, 1, width))
        self.position = PositionTable(grid, dim)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid = grid_of(x, grid)
        leading = x.shape[1] - grid[0] * grid[1]
        q, gate = self.qg(x).chunk(2, -1)
        k, v = self.kv(x).chunk(2, -1)
        placed = to_tokens(self.position(to_map(k[:, leading:], grid)))
        (q_up, q_down), (k_up, k_down) = self._polar(q), self._polar(torch.cat((k[:, :leading], placed), 1))
        keys, values = torch.cat((k_up, k_down), -1), self._split(v)
        same, opposite = torch.cat((q_up, q_down), -1), torch.cat((q_down, q_up), -1)
        first, last = values.chunk(2, -1)
        y = [linear_attention(same, keys, first, EPSILON), linear_attention(opposite, keys, last, EPSILON)]
        local = F.pad(self._local(values[:, :, leading:], grid), (0, 0, leading, 0))
        return self.proj((torch.cat(y, -1) + local).transpose(1, 2).flatten(2) * gate)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, h, N, d)

    def _polar(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``relu(x / scale)^p`` and ``relu(-x / scale)^p`` by head (B, h, N, d), p from 1 to 5, in float32."""
        dtype = compute_dtype(x)
        x = self._split(x.to(dtype) / F.softplus(self.scale.to(dtype)))
        power = 1 + 4 * self.power.to(dtype).sigmoid()
        up, down = (torch.pow(F.relu(part), power).clamp(max=LARGEST) for part in (x, -x))
        return up, down

    def _local(self, v: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, h, H * W, d) -> the same shape."""
        return to_tokens(self.dwc(to_map(v.flatten(0, 1), grid))).unflatten(0, (-1, self.num_heads))

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}'
