"""Tokens and maps: two views of one memory, in which the channels of a token lie together."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def to_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, H * W, C) -> map (B, C, H, W), channels last.

    The order of these two views matters: with one image, other ways leave strides by which torch does
    not see that the map is channels last, and copies it.
    """
    return x.unflatten(1, grid).permute(0, 3, 1, 2)


def lacking(size: int, multiple: int) -> int:
    """What ``size`` lacks to the next multiple, counted as convolutions do: torch.compile simplifies such symbols."""
    return ((size - 1) // multiple + 1) * multiple - size


def to_multiples(x: Tensor, multiple: int) -> Tensor:
    """Map (B, H, W, C), zero-padded at the right and bottom to sides that are multiples."""
    return F.pad(x, (0, 0, 0, lacking(x.shape[2], multiple), 0, lacking(x.shape[1], multiple)))


def to_tokens(x: Tensor) -> Tensor:
    """Map (B, C, H, W) -> tokens (B, H * W, C), a view if the map is channels last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def to_windows(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Map (B, n * h, m * w, C) -> its n m windows of (h, w), (B * n * m, h, w, C)."""
    return _windows(x, window).flatten(0, 2)


def to_windows_together(maps: Sequence[Tensor], window: tuple[int, int]) -> tuple[Tensor, ...]:
    """The windows of several maps (B, n * h, m * w, C), in one copy: (B * n * m, h, w, C) of each."""
    return torch.stack([_windows(x, window) for x in maps]).flatten(1, 3).unbind()


def _windows(x: Tensor, window: tuple[int, int]) -> Tensor:
    return x.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0])).transpose(2, 3)  # (B, n, m, h, w, C)


def from_windows(x: Tensor, count: tuple[int, int]) -> Tensor:
    """The inverse, with (n, m) windows: (B * n * m, h, w, C) -> (B, n * h, m * w, C)."""
    return x.unflatten(0, (-1, count[0], count[1])).transpose(2, 3).flatten(3, 4).flatten(1, 2)
