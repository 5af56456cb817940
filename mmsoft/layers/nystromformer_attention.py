"""Nystromformer attention: softmax attention approximated from landmarks of queries and keys."""

import torch
from torch import Tensor

from mmsoft.ops import nystrom_attention
from mmsoft.ops.checks import whole

from .heads import MultiHead, grid_of
from .landmarks import Landmarks


class NystromformerAttention(MultiHead):
    """``softmax(q l_k') softmax(l_q l_k')^+ softmax(l_q k') v`` with landmarks of queries and of keys.

    Xiong et al., "Nystromformer", AAAI 2021, with landmarks that average a two-dimensional window, as SOFT's paper
    compares it (``landmarks`` samples any other way that it knows as well), without the convolution of values.
    """

    def __init__(self, dim: int, num_heads: int, landmarks: Landmarks, iterations: int = 6) -> None:
        super().__init__(dim, num_heads)
        self.landmarks = landmarks
        self.iterations = whole('iterations', iterations)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        if grid is None:
            self.landmarks.check_sequence()
        grid = grid_of(x, grid)
        first = x.shape[1] - grid[0] * grid[1]
        q = self.q(x)
        k, v = self.kv(x).chunk(2, -1)
        # both sets at once: the same tokens are picked where sampling is random
        both = self.landmarks(torch.cat((q[:, first:], k[:, first:]), 2), grid)  # (B, 2 h, m, d)
        q_landmarks, k_landmarks = both.chunk(2, 1)
        y = nystrom_attention(self._split(q), self._split(k), self._split(v), q_landmarks, k_landmarks, self.iterations)
        return self._join(y)
