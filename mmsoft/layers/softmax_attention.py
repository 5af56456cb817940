"""Ordinary softmax attention, for the coarsest stage."""

import math
from typing import Optional  # TorchScript of torch 2.1 knows no | in annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.ops import bounded_grid, to_map, to_tokens

from .heads import MultiHead, grid_of


class SoftmaxAttention(MultiHead):
    """Multi-head softmax attention over a grid of tokens, after any leading tokens that are not on it.

    On a grid of more than ``max_keys`` tokens, keys and values are those of the grid averaged down
    to at most half that many (each average takes in two tokens or more): the cost stays linear in
    the number of queries. None never averages.
    """

    def __init__(self, dim: int, num_heads: int, max_keys: int | None = None) -> None:
        super().__init__(dim, num_heads)
        self.max_keys = max_keys

    def forward(self, x: Tensor, grid: Optional[tuple[int, int]] = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        source, log_weight = self._keys(x, grid_of(x, grid))
        q = self._split(self.q(x))
        k, v = self.kv(source).chunk(2, -1)
        k, v = self._split(k), self._split(v)
        if log_weight is not None:
            log_weight = log_weight.to(q.dtype)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=log_weight)
        return self._join(y)

    def _keys(self, x: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Optional[Tensor]]:
        """Tokens for keys and values: all, or the leading ones and the averaged grid.

        With these comes a bias that counts each average as its many tokens.
        """
        count = grid[0] * grid[1]
        if self.max_keys is None or count <= self.max_keys:
            return x, None
        leading, tokens = x[:, : x.shape[1] - count], x[:, x.shape[1] - count :]
        small = bounded_grid(grid[0], grid[1], max(self.max_keys // 2, 1))
        pooled = F.adaptive_avg_pool2d(to_map(tokens, grid), small)
        pooled = to_tokens(pooled)
        if not leading.shape[1]:
            return pooled, None  # all keys count alike: the softmax does not see a common factor
        log_weight = x.new_zeros(1, leading.shape[1] + pooled.shape[1])
        log_weight[:, leading.shape[1] :] = math.log(count / pooled.shape[1])
        return torch.cat((leading, pooled), 1), log_weight

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, max_keys={self.max_keys}'
