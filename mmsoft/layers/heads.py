"""What attentions with queries, keys and values share: projections, heads, grids and sequences."""

from torch import Tensor, nn

from mmsoft.ops import project
from mmsoft.ops.checks import check, whole

from .linear import Linear


def split_evenly(dim: int, num_heads: int) -> int:
    """``num_heads`` if channels divide among them; otherwise a ValueError."""
    if dim % whole('num_heads', num_heads):
        raise ValueError(f'dim ({dim}) must be a multiple of num_heads ({num_heads})')
    return num_heads


class MultiHead(nn.Module):
    """Projections of tokens to heads and back; a subclass says how heads attend."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = split_evenly(dim, num_heads)
        self.q = Linear(dim, dim)
        self.kv = Linear(dim, 2 * dim)
        self.proj = Linear(dim, dim)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, N, C) -> queries, keys and values (B, h, N, d)."""
        kv, q = project(x, (self.kv, self.q), Linear)
        k, v = kv.chunk(2, -1)
        return self._split(q), self._split(k), self._split(v)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)  # (B, h, N, d)

    def _join(self, y: Tensor) -> Tensor:
        return self.proj(y.transpose(1, 2).flatten(2))  # (B, h, N, d) -> (B, N, C)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}'


def grid_of(x: Tensor, grid: tuple[int, int] | None) -> tuple[int, int]:
    """The grid of the last H * W tokens of x (B, T + H * W, C); a sequence, which has none, is a map of height 1."""
    if grid is None:
        return 1, x.shape[1]
    check(x.shape[1] >= grid[0] * grid[1], f'attention on grid {grid} takes (B, T + H * W, C)', x=x)
    return grid
