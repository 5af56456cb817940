"""An attention of your own in SOFT's pyramid; own_attention.md walks through it.

Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021.
"""

import torch
from torch import Tensor, nn

import mmsoft
from mmsoft.models import Place


class EfficientAttention(nn.Module):
    """``softmax_d(q) (softmax_N(k)' v)``: two softmaxes, of each query and of each channel of the keys."""

    def __init__(self, dim: int, num_heads: int, temperature: float) -> None:
        super().__init__()
        self.num_heads, self.temperature = num_heads, temperature
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W) -> the same shape."""
        q, k, v = (t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q = torch.softmax(q / self.temperature, -1)  # (B, h, N, d)
        k = torch.softmax(k / self.temperature, -2)
        y = q @ (k.transpose(-2, -1) @ v)  # (B, h, N, d), by way of (B, h, d, d)
        return self.proj(y.transpose(1, 2).flatten(2))


def build(place: Place, *, temperature: float = 1.0) -> EfficientAttention:
    """The layer at its place; keyword arguments are what ``dict(type='efficient', ...)`` may give."""
    if not temperature > 0:
        raise ValueError(f"attn 'efficient': temperature must be above 0; got {temperature!r}")
    return EfficientAttention(place.dim, place.heads, temperature)


mmsoft.register_attention('efficient', build, title='Efficient attention', linear=True)
