"""A stage of a backbone: patch embedding, position table, layers."""

import warnings
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmsoft.layers.block import run_blocks
from mmsoft.ops import to_map, to_tokens
from mmsoft.ops.checks import check
from mmsoft.ops.dispatch import has_backward, makes_sizes_constants


class Stage(nn.Module):
    """Patch embedding, position table, layers."""

    def __init__(self, embed: nn.Module, position: nn.Module, blocks: Sequence[nn.Module], with_cp: bool) -> None:
        super().__init__()
        self.embed, self.position, self.blocks = embed, position, nn.ModuleList(blocks)
        self.with_cp = with_cp

    def forward(self, x: Tensor, leading: Tensor | None = None) -> Tensor:
        """x (B, C', H', W') -> (B, C, H, W); with ``leading`` tokens (B, T, C), all tokens (B, T + H * W, C)."""
        x = self.position(self.embed(x))
        grid = (x.shape[2], x.shape[3])
        tokens = to_tokens(x)
        if leading is not None:
            tokens = torch.cat((leading, tokens), 1)
        tokens = run_layers(self.blocks, tokens, grid, self.with_cp)
        return to_map(tokens, grid) if leading is None else tokens


def run_layers(layers: nn.ModuleList, x: Tensor, grid: tuple[int, int], with_cp: bool) -> Tensor:
    """x through all layers, each as :func:`run_layer` has it."""
    if not (with_cp and layers.training and has_backward()):
        return run_blocks(list(layers), x, grid)
    for layer in layers:
        x = run_layer(layer, x, grid, with_cp)
    return x


def run_layer(layer: nn.Module, x: Tensor, grid: tuple[int, int], with_cp: bool) -> Tensor:
    """``layer(x, grid)``; with ``with_cp``, backward computes it again."""
    if with_cp and layer.training and has_backward():
        return cast(Tensor, checkpoint(layer, x, grid, use_reentrant=False))
    return layer(x, grid)


def to_channels_last(x: Tensor, in_channels: int) -> Tensor:
    """Images in the layout that every stage keeps: (B, C, H, W) with tokens contiguous in memory."""
    check(x.dim() == 4 and x.shape[1] == in_channels, f'the model takes images (B, {in_channels}, H, W)', x=x)
    if makes_sizes_constants():
        height, width = map(int, x.shape[2:])
        warnings.warn(
            f'this tracer takes sizes for constants: the file is right for images of {height} x {width} alone, '
            'whatever dynamic_axes says; tools/export.py writes one for any size',
            stacklevel=2,
        )
    return x.contiguous(memory_format=torch.channels_last)
