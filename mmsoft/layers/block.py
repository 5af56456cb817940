"""Transformer layers: attention and MLP, each with a residual and a LayerNorm before or after it."""

from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmsoft.ops import add_norm, add_residual, linear_gelu, token_wise
from mmsoft.ops.checks import choose
from mmsoft.ops.dispatch import has_backward

from .linear import Linear


class Mlp(nn.Module):
    """Linear, GELU (exact, or its tanh approximation), linear.

    ``recompute``: in training, backward computes the hidden map again (less memory, more time), or keeps it (False).
    None computes it again on CPUs, slice by slice, and keeps it elsewhere.
    """

    def __init__(self, dim: int, hidden: int, approximate: str = 'none', recompute: bool | None = None) -> None:
        super().__init__()
        self.fc1 = Linear(dim, hidden)
        self.fc2 = Linear(hidden, dim)
        self.hidden, self.approximate = hidden, approximate
        self.recompute = choose('recompute', recompute, (None, True, False))

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, C) -> the same shape."""
        return token_wise(x, function=self._run, module=self, hidden=self.hidden, recompute=self.recompute)

    def _run(self, x: Tensor) -> Tensor:
        return self.fc2(linear_gelu(x, self.fc1, Linear, self.approximate))

    def extra_repr(self) -> str:
        return f'gelu={self.approximate}, recompute={self.recompute}'


class Block(nn.Module):
    """An attention and an MLP, each with a residual, a LayerNorm and stochastic depth: a subclass orders them."""

    def __init__(self, dim: int, attn: nn.Module, mlp: nn.Module, drop_path: float, eps: float) -> None:
        super().__init__()
        self.attn = attn
        self.norm1 = nn.LayerNorm(dim, eps=eps)
        self.mlp = mlp
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.drop_path = StochasticDepth(drop_path, mode='row')


class PostNormBlock(Block):
    """``x = norm(x + attn(x)); x = norm(x + mlp(x))`` (SOFT's stages 1 to 3)."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, N, C) whose last H * W tokens lie on grid (H, W) -> the same shape."""
        y = self.attn(x, grid)
        if has_backward() or self.training or not isinstance(self.mlp, Mlp):
            return self._add(x, y)
        return token_wise(x, y, function=self._add, module=self, hidden=self.mlp.hidden)

    def _add(self, x: Tensor, y: Tensor) -> Tensor:
        """Both residuals, with y the attention's output."""
        _, x = add_norm(x, y, self.norm1, self.drop_path, keep=False)
        return add_norm(x, self.mlp(x), self.norm2, self.drop_path, keep=False)[1]


class PreNormBlock(Block):
    """``x = x + attn(norm(x)); x = x + mlp(norm(x))`` (SOFT's stage 4)."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """x (B, N, C) whose last H * W tokens lie on grid (H, W) -> the same shape."""
        x, normed = add_norm(x, self.attn(self.norm1(x), grid), self.norm2, self.drop_path)
        return add_residual(x, self.mlp(normed), self.drop_path)
