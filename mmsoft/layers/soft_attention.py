"""SOFT and SOFT++ attention as a layer: projections, landmarks, the operator, a local term."""

import math

import torch
from torch import Tensor, nn

from mmsoft.ops import add_head_convolution, landmark_share, softmax_free_attention
from mmsoft.ops.checks import flag, pair

from .heads import grid_of, split_evenly
from .landmarks import Landmarks
from .linear import Linear


class SoftAttention(nn.Module):
    """Softmax-free attention over a grid of tokens, linear in their number.

    Queries serve as keys, unless ``symmetric`` is False. To the attention output is added a depth-wise
    convolution of the values, whose kernel is one a head (``local``, (h, 1, k, k)). A sequence, which has
    no grid, takes landmarks with a window (1, r) and a local kernel (1, k). Where landmarks are bounded, ``scaled``
    keeps the attention output at the size that it has with a window of tokens for each landmark (ops.landmark_share).
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        landmarks: Landmarks,
        local_kernel: int | tuple[int, int],
        normalize: bool = True,
        newton_iters: int = 20,
        newton_backward: str = 'unrolled',
        symmetric: bool = True,
        scaled: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.head_dim = split_evenly(dim, num_heads), dim // num_heads
        sides = pair('local_kernel', local_kernel)
        if not all(side % 2 for side in sides):
            raise ValueError(f'local_kernel must have odd sides, to have a centre; got {local_kernel!r}')
        self.normalize, self.newton_iters, self.newton_backward = normalize, newton_iters, newton_backward
        self.scaled = flag('scaled', scaled)
        self.q = Linear(dim, dim)
        self.k = None if symmetric else Linear(dim, dim)
        self.v = Linear(dim, dim)
        self.landmarks = landmarks
        self.local = nn.Parameter(torch.empty(num_heads, 1, *sides))
        self.proj = Linear(dim, dim)
        nn.init.kaiming_uniform_(self.local, a=math.sqrt(5))

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        if grid is None:
            self.landmarks.check_sequence()
            if self.local.shape[2] != 1:
                rows, columns = self.local.shape[2:]
                raise ValueError(f'a sequence takes a local kernel (1, k); this one has {rows} x {columns}')
        grid = grid_of(x, grid)
        v = self.v(x)
        y = self._attend(x, v, grid)
        return self.proj(add_head_convolution(y, v, self.local, grid))

    def _attend(self, x: Tensor, v: Tensor, grid: tuple[int, int]) -> Tensor:
        """x and v (B, N, C) -> the same shape; the queries live no longer than this."""
        q, scale = self.q(x), self.head_dim**-0.25
        landmarks = self.landmarks(q[:, q.shape[1] - grid[0] * grid[1] :], grid, scale)
        y = softmax_free_attention(
            self._split(q),
            landmarks,
            self._split(v),
            normalize=self.normalize,
            iterations=self.newton_iters,
            backward=self.newton_backward,
            k=None if self.k is None else self._split(self.k(x)),
            scale=scale,
            gain=landmark_share(landmarks, grid, self.landmarks.ratio) if self.scaled else 1.0,
        )
        return y.transpose(1, 2).flatten(2)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)  # (B, h, N, d)

    def extra_repr(self) -> str:
        return (
            f'num_heads={self.num_heads}, normalize={self.normalize}, symmetric={self.k is None}, '
            f'scaled={self.scaled}, newton_iters={self.newton_iters}, newton_backward={self.newton_backward}'
        )
