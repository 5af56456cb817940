"""Transformer layers: attention and MLP, each with a residual and a LayerNorm before or after it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torchvision.ops import StochasticDepth

from mmsoft.ops import gelu_tanh
from mmsoft.ops.dispatch import is_graph as is_compiling

from .hooks import has_hooks
from .linear import Linear

# On a CPU what follows the attention runs over slices of this many hidden values (8 MiB in float32), which stay
# in its cache: faster on large maps, and the hidden map never exists whole.
HIDDEN_SLICE = 2**21


class Mlp(nn.Module):
    """Linear, GELU (exact, or its tanh approximation), linear; in training backward computes the hidden map again."""

    def __init__(self, dim: int, hidden: int, approximate: str = 'none') -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.fc2 = Linear(hidden, dim)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) -> the same shape."""
        if x.device.type == 'meta' or is_compiling():
            return self._run(x)
        parts = x.flatten(0, -2).split(self.slice_length(x))
        if torch.is_grad_enabled():
            parts = [checkpoint(self._run, part, use_reentrant=False, preserve_rng_state=False) for part in parts]
        else:
            parts = [self._run(part) for part in parts]
        return torch.cat(parts).view(x.shape) if len(parts) > 1 else parts[0].view(x.shape)

    def slice_length(self, x: Tensor) -> int:
        """How many tokens of x (..., C) to take at a time."""
        count = max(x.numel() // x.shape[-1], 1)
        return min(max(HIDDEN_SLICE // self.fc1.out_features, 1), count) if x.device.type == 'cpu' else count

    def _run(self, x: Tensor) -> Tensor:
        hidden = self.fc1(x)
        return self.fc2(gelu_tanh(hidden) if self.approximate == 'tanh' else F.gelu(hidden))

    def extra_repr(self) -> str:
        return f'gelu={self.approximate}'


class PostNormBlock(nn.Module):
    """``x = norm(x + attn(x)); x = norm(x + mlp(x))`` (SOFT's stages 1 to 3)."""

    def __init__(self, dim: int, attn: nn.Module, mlp: Mlp, drop_path: float, eps: float) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.mlp = mlp
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.drop_path = StochasticDepth(drop_path, mode='row')

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, N, C) whose last H * W tokens lie on grid (H, W) -> the same shape."""
        y = self.attn(x, grid)
        if torch.is_grad_enabled() or self.training or x.device.type != 'cpu' or is_compiling() or has_hooks(self):
            return self._add(x, y)
        out = torch.empty(x.shape, dtype=x.dtype)
        length = self.mlp.slice_length(x)
        for x_part, y_part, out_part in zip(*(t.flatten(0, 1).split(length) for t in (x, y, out)), strict=True):
            out_part.copy_(self._add(x_part, y_part))
        return out

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        """Both residuals, with y the attention's output."""
        x = self.norm1(x + self.drop_path(y))
        return self.norm2(x + self.drop_path(self.mlp(x)))


class PreNormBlock(PostNormBlock):
    """``x = x + attn(norm(x)); x = x + mlp(norm(x))`` (SOFT's stage 4)."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))
