"""Linformer attention: softmax attention to a fixed number of learned mixtures of keys and values."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import to_map, to_tokens
from mmsoft.ops.checks import pair, whole

from .heads import MultiHead, grid_of


class LinformerAttention(MultiHead):
    """Keys and values are mixed over tokens by learned matrices E and F (m, N), shared by the heads.

    Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020. The matrices fix N: it is that of ``length``,
    a grid (h, w), or (1, N) for sequences. Where the input has another grid, its tokens are averaged (or, where there
    are fewer, repeated) to that grid before they are mixed; queries stay as they are. The cost is linear in tokens.
    Leading tokens are keys and values of their own, unmixed.
    """

    def __init__(self, dim: int, num_heads: int, length: int | tuple[int, int], num_mixtures: int = 49) -> None:
        super().__init__(dim, num_heads)
        self.length = pair('length', length)
        whole('num_mixtures', num_mixtures)
        count = self.length[0] * self.length[1]
        self.mix_k = nn.Parameter(torch.empty(num_mixtures, count))
        self.mix_v = nn.Parameter(torch.empty(num_mixtures, count))
        for mix in (self.mix_k, self.mix_v):  # mixtures as large as tokens
            nn.init.normal_(mix, std=count**-0.5)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid = grid_of(x, grid)
        count = x.shape[1] - grid[0] * grid[1]
        leading, tokens = x[:, :count], x[:, count:]
        if grid != self.length:
            tokens = to_tokens(F.adaptive_avg_pool2d(to_map(tokens, grid), self.length))
        k, v = self.kv(tokens).chunk(2, -1)
        k, v = torch.matmul(self.mix_k, k), torch.matmul(self.mix_v, v)  # (B, m, C)
        if count:
            leading_k, leading_v = self.kv(leading).chunk(2, -1)
            k, v = torch.cat((leading_k, k), 1), torch.cat((leading_v, v), 1)
        return self._join(F.scaled_dot_product_attention(self._split(self.q(x)), self._split(k), self._split(v)))

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, length={self.length}, num_mixtures={self.mix_k.shape[0]}'
