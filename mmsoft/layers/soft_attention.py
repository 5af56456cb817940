"""SOFT and SOFT++ attention as a layer: projections, landmarks, the operator, a local term."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import linear, softmax_free_attention, to_map, to_tokens

from .landmarks import Landmarks
from .linear import Linear


class SoftAttention(nn.Module):
    """Softmax-free attention over a grid of tokens, linear in their number.

    Queries serve as keys. To the attention output is added a depth-wise convolution of the values,
    whose kernel is one a head (``local``, (h, 1, k, k)).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        landmarks: Landmarks,
        local_kernel: int,
        normalize: bool = True,
        newton_iters: int = 20,
        newton_backward: str = 'unrolled',
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.normalize, self.newton_iters, self.newton_backward = normalize, newton_iters, newton_backward
        self.q = Linear(dim, dim)
        self.v = Linear(dim, dim)
        self.landmarks = landmarks
        self.local = nn.Parameter(torch.empty(num_heads, 1, local_kernel, local_kernel))
        self.proj = Linear(dim, dim)
        nn.init.kaiming_uniform_(self.local, a=math.sqrt(5))

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, H * W, C) on grid (H, W) -> (B, H * W, C)."""
        v = self.v(x)
        y = self._attend(x, v, grid)
        return self.proj(self._local(v, grid).add_(y))

    def _attend(self, x: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
        """x and v (B, H * W, C) -> the same shape; the queries live no longer than this."""
        scale = self.head_dim**-0.25  # put on the projection rather than on every token
        q = linear(x, self.q.weight * scale, self.q.bias * scale)
        y = softmax_free_attention(
            self._split(q),
            self.landmarks(q, grid),
            self._split(v),
            normalize=self.normalize,
            iterations=self.newton_iters,
            backward=self.newton_backward,
        )
        return y.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # (B, h, N, d)

    def _local(self, v: Tensor, grid: tuple[int, int]) -> Tensor:
        weight = self.local.repeat_interleave(self.head_dim, 0)  # (C, 1, k, k)
        return to_tokens(F.conv2d(to_map(v, grid), weight, padding=weight.shape[-1] // 2, groups=v.shape[2]))

    def extra_repr(self) -> str:
        return (
            f'num_heads={self.num_heads}, normalize={self.normalize}, '
            f'newton_iters={self.newton_iters}, newton_backward={self.newton_backward}'
        )
