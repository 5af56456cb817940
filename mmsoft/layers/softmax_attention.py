"""Ordinary softmax attention, with the ways to spare it some of its keys."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import average_beyond, lacking, softmax_attention, to_map, to_tokens
from mmsoft.ops.checks import pair
from mmsoft.ops.dispatch import is_symbol

from .heads import MultiHead, grid_of
from .linear import Linear
from .window_conv import WindowConv


class SoftmaxAttention(MultiHead):
    """Multi-head softmax attention over a grid of tokens, after any leading tokens that are not on it.

    On a grid of more than ``max_keys`` tokens, keys and values are those of the grid averaged down
    to at most half that many (each average takes in two tokens or more): the cost stays linear in
    the number of queries. None never averages.

    ``reduction``, rows and columns or one number for both, takes keys and values from such windows of the
    grid, by a learned convolution and LayerNorm (PVT's spatial reduction; the cost falls by as much and stays
    quadratic). ``symmetric`` takes the queries' projection for keys as well.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_keys: int | None = None,
        reduction: int | tuple[int, int] = 1,
        symmetric: bool = False,
    ) -> None:
        super().__init__(dim, num_heads)
        self.max_keys, self.symmetric = max_keys, symmetric
        if symmetric:
            self.kv = Linear(dim, dim)  # values only
        self.reduction = pair('reduction', reduction)
        self.reduces = self.reduction != (1, 1)
        if self.reduces:
            self.reduce = WindowConv(dim, dim, self.reduction)
            self.reduce_norm = nn.LayerNorm(dim, eps=1e-5)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        if grid is None and self.reduction[0] != 1:
            rows, columns = self.reduction
            raise ValueError(f'a sequence takes a reduction (1, r); this one is {rows} x {columns}')
        source, log_weight = self._keys(x, grid_of(x, grid))
        q = self.q(x)
        if self.symmetric:
            k, v = q if source is x else self.q(source), self.kv(source)
        else:
            k, v = self.kv(source).chunk(2, -1)
        q, k, v = map(self._split, (q, k, v))
        if log_weight is not None:
            log_weight = log_weight.to(q.dtype)
        y = softmax_attention(q, k, v, log_weight)
        return self._join(y)

    def _keys(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor | None]:
        """Tokens for keys and values: all, or the leading ones and the reduced or averaged grid.

        With averages comes a bias that counts each as its many tokens.
        """
        if self.reduces:
            return self._reduced(x, grid), None
        if self.max_keys is not None and (is_symbol(*grid) or grid[0] * grid[1] > self.max_keys):
            return self._averaged(x, grid, self.max_keys)
        return x, None

    def _averaged(self, x: Tensor, grid: tuple[int, int], most: int) -> tuple[Tensor, Tensor | None]:
        count = grid[0] * grid[1]
        leading, tokens = x[:, : x.shape[1] - count], x[:, x.shape[1] - count :]
        if is_symbol(*grid) and leading.shape[1]:
            raise ValueError('a model with a class token is exported at one height and width; give fixed ones')
        pooled = to_tokens(average_beyond(to_map(tokens, grid), most, max(most // 2, 1)))
        if not leading.shape[1]:
            return pooled, None  # all keys count alike: the softmax does not see a common factor
        log_weight = x.new_zeros(1, leading.shape[1] + pooled.shape[1])
        log_weight[:, leading.shape[1] :] = math.log(count / pooled.shape[1])
        return torch.cat((leading, pooled), 1), log_weight

    def _reduced(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """The leading tokens as they are, and one for each window; the last ones are filled up with zeros."""
        first, (rows, columns) = x.shape[1] - grid[0] * grid[1], self.reduction
        windows = F.pad(to_map(x[:, first:], grid), (0, lacking(grid[1], columns), 0, lacking(grid[0], rows)))
        return torch.cat((x[:, :first], self.reduce_norm(to_tokens(self.reduce(windows)))), 1)

    def extra_repr(self) -> str:
        return (
            f'num_heads={self.num_heads}, max_keys={self.max_keys}, '
            f'reduction={self.reduction}, symmetric={self.symmetric}'
        )
