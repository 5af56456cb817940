"""Plain linear attention: a feature map of queries and keys in place of the softmax."""

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
    relu: see tools/studies/claims.py.
    """

    def __init__(self, dim: int, num_heads: int, kernel: str = 'elu') -> None:
        super().__init__(dim, num_heads)
        self.kernel = choose('kernel', kernel, KERNELS)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid_of(x, grid)
        q, k, v = self._project(x)
        q, k = self.features(q, k)
        return self._join(linear_attention(q, k, v))

    def features(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """phi of queries and keys (B, h, N, d), at least 0 and up to a factor of each query, which cancels."""
        scale = q.shape[-1] ** -0.25
        q, k = q.to(compute_dtype(q)) * scale, k.to(compute_dtype(k)) * scale
        if self.kernel == 'elu':
            return F.elu(q) + 1, F.elu(k) + 1
        if self.kernel == 'relu':
            return F.relu(q), F.relu(k)
        # exp(q_f) exp(k_f) = exp(q_f + c_f) exp(k_f - c_f), c_f the largest of a channel's keys: nothing overflows, and
        # a query's largest feature meets a key of 1
        largest = k.detach().amax(2, keepdim=True)
        q = q + largest
        return torch.exp(q - q.detach().amax(-1, keepdim=True)), torch.exp(k - largest)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, kernel={self.kernel}'
