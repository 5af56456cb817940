"""Transformer layers: attention and MLP, each with a residual and a LayerNorm before or after it."""

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

from torch import Tensor, nn
from torchvision.ops import StochasticDepth

from mmsoft.ops import add_norm, add_residual, linear_gelu, token_wise
from mmsoft.ops.checks import choose
from mmsoft.ops.dispatch import has_backward, is_graph, is_watched, no_triton

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
        x, y = self._branches(x, self.norm1(x), grid)
        return add_residual(x, y, self.drop_path)

    def _branches(self, x: Tensor, normed: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """x with the attention's branch, and the MLP's, which is not added yet."""
        x, normed = add_norm(x, self._attend(x, normed, grid), self.norm2, self.drop_path)
        return x, self.mlp(normed)

    def _attend(self, x: Tensor, normed: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.attn(normed, grid)


def run_blocks(blocks: Sequence[nn.Module], x: Tensor, grid: tuple[int, int]) -> Tensor:
    """x (B, N, C) through all of them, in order.

    Where kernels run, the sum that ends a pre-norm block and the norm that begins the next one are one operator.
    """
    if not blocks or no_triton(x) or is_graph() or not all(map(_is_plain, blocks)):
        for block in blocks:
            x = block(x, grid)
        return x
    plain = cast('Sequence[PreNormBlock]', blocks)
    normed = plain[0].norm1(x)
    for block, following in pairwise(plain):
        x, y = block._branches(x, normed, grid)
        x, normed = add_norm(x, y, following.norm1, block.drop_path)
    x, y = plain[-1]._branches(x, normed, grid)
    return add_residual(x, y, plain[-1].drop_path)


def _is_plain(block: nn.Module) -> bool:
    """Whether it is called as PreNormBlock has it, by nothing that would have to see the call."""
    forward = getattr(block.forward, '__func__', None)
    return forward is PreNormBlock.forward and block._compiled_call_impl is None and not is_watched(block, parts=False)
