"""Plain linear attention: a feature map of queries and keys in place of the softmax."""

from typing import Optional  # TorchScript of torch 2.1 knows no | in annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmsoft.ops import linear_attention
from mmsoft.ops.checks import choose, compute_dtype

from .heads import MultiHead, grid_of

KERNELS = ('elu', 'relu', 'exp')


class LinearAttention(MultiHead):
    """``phi(q) (phi(K)' V) / (phi(q) (phi(K)' 1))``, phi = elu + 1, relu or exp of queries and keys times d^(-1/4).

    Katharopoulos et al., "Transformers are RNNs", ICML 2020. A query and its multiples have the same weights with
    relu: see engine.attention_claims.
    """

    def __init__(self, dim: int, num_heads: int, kernel: str = 'elu') -> None:
        super().__init__(dim, num_heads)
        self.kernel = choose('kernel', kernel, KERNELS)

    def forward(self, x: Tensor, grid: Optional[tuple[int, int]] = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid_of(x, grid)
        q, k, v = self._project(x)
        return self._join(linear_attention(self.features(q, False), self.features(k, True), v))

    def features(self, x: Tensor, keys: bool) -> Tensor:
        """phi of x (B, h, N, d), at least 0."""
        x = x.to(compute_dtype([x])) * x.shape[-1] ** -0.25
        if self.kernel == 'elu':
            return F.elu(x) + 1
        if self.kernel == 'relu':
            return F.relu(x)
        # the largest becomes 1, of each query or of all keys of a head: a factor that cancels, without overflow
        largest = x.detach().amax((2, 3), keepdim=True) if keys else x.detach().amax(-1, keepdim=True)
        return torch.exp(x - largest)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, kernel={self.kernel}'
