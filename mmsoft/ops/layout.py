"""Tokens and maps: two views of one memory, in which the channels of a token lie together."""

from torch import Tensor


def to_map(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """Tokens (B, H * W, C) -> map (B, C, H, W), channels last.

    The order of these two views matters: with one image, other ways leave strides by which torch does
    not see that the map is channels last, and copies it.
    """
    return x.unflatten(1, grid).permute(0, 3, 1, 2)


def to_tokens(x: Tensor) -> Tensor:
    """Map (B, C, H, W) -> tokens (B, H * W, C), a view if the map is channels last."""
    return x.permute(0, 2, 3, 1).flatten(1, 2)
