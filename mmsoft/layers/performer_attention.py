"""Performer attention (FAVOR+): softmax attention estimated by positive random features."""

import torch
from torch import Tensor, nn

from mmsoft.ops import linear_attention, orthogonal_directions, positive_features
from mmsoft.ops.checks import whole

from .heads import MultiHead, grid_of


class PerformerAttention(MultiHead):
    """Linear attention on ``num_features`` positive features of orthogonal random directions, linear in tokens.

    Choromanski et al., "Rethinking Attention with Performers", ICLR 2021. The directions, shared by the heads, are
    drawn from ``seed`` and saved with the weights; :meth:`redraw` draws others.
    """

    directions: Tensor

    def __init__(self, dim: int, num_heads: int, num_features: int = 64, seed: int = 0) -> None:
        super().__init__(dim, num_heads)
        whole('num_features', num_features)
        self.register_buffer('directions', torch.empty(num_features, dim // num_heads))
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw the directions anew."""
        self.directions.copy_(orthogonal_directions(self.directions.shape[0], self.directions.shape[1], seed))

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid_of(x, grid)
        q, k, v = self._project(x)
        scale = q.shape[-1] ** -0.25
        q = positive_features(q * scale, self.directions, False)
        k = positive_features(k * scale, self.directions, True)
        return self._join(linear_attention(q, k, v))

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}, num_features={self.directions.shape[0]}'


def redraw_features(model: nn.Module, seed: int) -> int:
    """Draw the directions of every Performer attention of a model anew, each from a seed of its own; their number."""
    whole('seed', seed, 0)
    layers = [module for module in model.modules() if isinstance(module, PerformerAttention)]
    for index, layer in enumerate(layers):
        layer.redraw(seed + index)
    return len(layers)
