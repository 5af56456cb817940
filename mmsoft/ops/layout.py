"""Tokens and maps: two views of one memory, in which the channels of a token lie together."""

import torch.nn.functional as F
from torch import Tensor

from .dispatch import is_symbol


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
    """Map (B, H, W, C), zero-padded at the right and bottom to sides that are multiples; itself if they are."""
    rows, columns = lacking(x.shape[1], multiple), lacking(x.shape[2], multiple)
    if multiple == 1 or not (is_symbol(rows, columns) or rows or columns):  # torch would copy it
        return x
    return F.pad(x, (0, 0, 0, columns, 0, rows))


def to_tokens(x: Tensor) -> Tensor:
    """Map (B, C, H, W) -> tokens (B, H * W, C), a view if the map is channels last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)


def to_windows(x: Tensor, window: tuple[int, int]) -> Tensor:
    """Map (B, n * h, m * w, C) -> its n m windows of (h, w), (B * n * m, h, w, C)."""
    return x.unflatten(2, (-1, window[1])).unflatten(1, (-1, window[0])).transpose(2, 3).flatten(0, 2)


def from_windows(x: Tensor, count: tuple[int, int]) -> Tensor:
    """The inverse, with (n, m) windows: (B * n * m, h, w, C) -> (B, n * h, m * w, C)."""
    return x.unflatten(0, (-1, count[0], count[1])).transpose(2, 3).flatten(3, 4).flatten(1, 2)
