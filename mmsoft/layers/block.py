"""Transformer layers: attention and MLP, each with a residual and a LayerNorm before or after it."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmsoft.ops.checks import is_compiling

# On a CPU the MLP runs over slices of this many hidden values (8 MiB in float32), which stay in
# its cache: faster on large maps, and without gradients the hidden map never exists whole.
HIDDEN_SLICE = 2**21


class Mlp(nn.Module):
    """Linear, GELU (exact, or its tanh approximation), linear."""

    def __init__(self, dim: int, hidden: int, approximate: str = 'none') -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) -> the same shape."""
        if torch.jit.is_scripting():
            return self._run(x)
        rows = max(HIDDEN_SLICE // self.fc1.out_features, 1)
        if is_compiling() or x.device.type != 'cpu' or x.shape[0] * x.shape[1] <= rows:
            return self._run(x)
        return torch.cat([self._run(part) for part in x.flatten(0, -2).split(rows)]).view(x.shape)

    def _run(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate=self.approximate))

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
        x = self.norm1(x + self.drop_path(self.attn(x, grid)))
        return self.norm2(x + self.drop_path(self.mlp(x)))


class PreNormBlock(PostNormBlock):
    """``x = x + attn(norm(x)); x = x + mlp(norm(x))`` (SOFT's stage 4)."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))
