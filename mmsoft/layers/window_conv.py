"""A convolution whose stride is its window, as one product."""

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.checks import pair
from mmsoft.ops.dispatch import is_graph as is_compiling


class WindowConv(nn.Conv2d):
    """nn.Conv2d with stride = kernel and no padding, computed as the product of all windows with the weight.

    oneDNN is wrong by 100 % in such convolutions in bfloat16 on CPUs with AMX where the channels are fewer than 32 and
    the stride is 4 or more (torch 2.6 and 2.12); the product is right everywhere. Graphs keep the convolution, as
    torch.compile takes minutes for the product's sizes where these are symbols.
    """

    def __init__(self, in_channels: int, out_channels: int, window: int | tuple[int, int], bias: bool = True) -> None:
        window = pair('window', window)
        super().__init__(in_channels, out_channels, window, stride=window, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, out, H // rh, W // rw); rows and columns that fill no window are left out."""
        if is_compiling():
            return super().forward(x)
        rh, rw = self.kernel_size
        gh, gw = x.shape[-2] // rh, x.shape[-1] // rw
        windows = x[..., : gh * rh, : gw * rw].unflatten(-1, (gw, rw)).unflatten(-3, (gh, rh))  # (B, C, gh, rh, gw, rw)
        windows = windows.permute(0, 2, 4, 1, 3, 5).flatten(3)  # (B, gh, gw, C * rh * rw)
        return F.linear(windows, self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)
