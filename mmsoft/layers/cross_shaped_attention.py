"""CSwin's attention: branches that look along stripes of the map, at all of it, or at all of it by InLine."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops import (
    add_depthwise,
    average_beyond,
    from_windows,
    inline_attention,
    to_multiples,
    to_windows,
)
from mmsoft.ops.checks import choose

from .block import PreNormBlock
from .heads import grid_of, split_evenly
from .inline_attention import KERNELS, KernelPredictor
from .linear import Linear

__all__ = ['CSwinBlock', 'CrossShapedAttention', 'GlobalBranch', 'InLineBranch', 'StripeBranch']


class Branch(nn.Module):
    """A part of the channels; its attention adds a 3 x 3 depth-wise convolution of the values (``lepe``).

    All are called with queries, keys and values as a map (B, H, W, 3, C) and ``source`` (B, N, C), tokens whose mean
    may decide on the convolution, and give (B, H, W, C).
    """

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = split_evenly(dim, num_heads)
        self.lepe = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def _heads(self, x: Tensor) -> Tensor:
        """Map (B, H, W, C) -> (B, h, H * W, d)."""
        return x.flatten(1, 2).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _map(self, y: Tensor, like: Tensor) -> Tensor:
        """Heads (B, h, H * W, d) -> a map as ``like`` (B, H, W, C)."""
        return y.transpose(1, 2).flatten(2).unflatten(1, (like.shape[1], like.shape[2]))

    def _lepe(self, v: Tensor) -> Tensor:
        return self.lepe(v.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)

    def extra_repr(self) -> str:
        return f'num_heads={self.num_heads}'


class StripeBranch(Branch):
    """Softmax attention, and lepe, in stripes ``split`` wide and as high as the map (vertical), or the reverse."""

    def __init__(self, dim: int, num_heads: int, split: int, vertical: bool) -> None:
        super().__init__(dim, num_heads)
        self.split, self.vertical = split, vertical

    def forward(self, qkv: Tensor, source: Tensor) -> Tensor:
        height, width = qkv.shape[1], qkv.shape[2]
        stripe = (height, self.split) if self.vertical else (self.split, width)
        windows = to_windows(qkv, stripe)
        if self.vertical:  # one copy brings all three to windows
            windows = windows.contiguous()
        q, k, v = windows.unbind(-2)
        y = F.scaled_dot_product_attention(self._heads(q), self._heads(k), self._heads(v))
        return from_windows(self._map(y, v) + self._lepe(v), (height // stripe[0], width // stripe[1]))

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, split={self.split}, vertical={self.vertical}'


class GlobalBranch(Branch):
    """Softmax attention over the whole map; of more than ``max_keys``, keys and values are averages of neighbours."""

    def __init__(self, dim: int, num_heads: int, max_keys: int) -> None:
        super().__init__(dim, num_heads)
        self.max_keys = max_keys

    def forward(self, qkv: Tensor, source: Tensor) -> Tensor:
        q, k, v = qkv.unbind(-2)
        keys, values = self._heads(self._bounded(k)), self._heads(self._bounded(v))
        y = F.scaled_dot_product_attention(self._heads(q), keys, values)
        return self._map(y, v) + self._lepe(v)

    def _bounded(self, x: Tensor) -> Tensor:
        """At most half of ``max_keys`` averages if there are more (as in SoftmaxAttention): (B, H, W, C)."""
        pooled = average_beyond(x.permute(0, 3, 1, 2), self.max_keys, max(self.max_keys // 2, 1))
        return pooled.permute(0, 2, 3, 1).contiguous()

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, max_keys={self.max_keys}'


class InLineBranch(Branch):
    """InLine attention over the whole map; its predicted kernels and lepe's are one convolution."""

    def __init__(self, dim: int, num_heads: int, kernel: str = 'identity') -> None:
        super().__init__(dim, num_heads)
        self.kernel = choose('kernel', kernel, KERNELS)
        self.predictor = KernelPredictor(dim, num_heads)

    def forward(self, qkv: Tensor, source: Tensor) -> Tensor:
        q, k, v = qkv.unbind(-2)
        y = inline_attention(self._heads(q), self._heads(k), self._heads(v), self.kernel)
        y, v = self._map(y, v).permute(0, 3, 1, 2), v.permute(0, 3, 1, 2)
        return add_depthwise(y, v, self.predictor(source.mean(1)), self.lepe).permute(0, 2, 3, 1)

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, kernel={self.kernel}'


class CrossShapedAttention(nn.Module):
    """Channels shared out evenly to branches; the map is zero-padded to multiples of ``multiple`` for them."""

    def __init__(self, dim: int, branches: Sequence[Branch], multiple: int = 1) -> None:
        super().__init__()
        self.multiple = multiple
        self.qkv = Linear(dim, 3 * dim)
        self.branches = nn.ModuleList(branches)
        self.proj = Linear(dim, dim)

    def forward(self, x: Tensor, grid: tuple[int, int], source: Tensor | None = None) -> Tensor:
        """x (B, H * W, C) on grid (H, W); source of the same shape, x itself by default."""
        if source is None:
            source = x
        height, width = grid_of(x, grid)
        qkv = self.qkv(to_multiples(x.unflatten(1, (height, width)), self.multiple))
        count = len(self.branches)  # one branch has all as it is, as gradients of parts would be copied together
        shares = qkv.unflatten(-1, (3, count, -1)).unbind(-2) if count > 1 else [qkv.unflatten(-1, (3, -1))]
        sources = source.chunk(count, -1) if count > 1 else [source]  # shares are (B, H, W, 3, C / count)
        parts = [branch(share, part) for branch, share, part in zip(self.branches, shares, sources, strict=True)]
        return self.proj((torch.cat(parts, -1) if count > 1 else parts[0])[:, :height, :width].flatten(1, 2))


class CSwinBlock(PreNormBlock):
    """A pre-norm block whose attention sees also its input before the norm."""

    def _attend(self, x: Tensor, normed: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.attn(normed, grid, x)
