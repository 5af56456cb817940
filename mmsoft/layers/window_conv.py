"""A convolution whose stride is its window."""

from torch import Tensor, nn

from mmsoft.ops import window_conv
from mmsoft.ops.checks import pair


class WindowConv(nn.Conv2d):
    """nn.Conv2d with stride = kernel and no padding, computed by :func:`mmsoft.ops.window_conv`."""

    def __init__(self, in_channels: int, out_channels: int, window: int | tuple[int, int], bias: bool = True) -> None:
        window = pair('window', window)
        super().__init__(in_channels, out_channels, window, stride=window, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, C, H, W) -> (B, out, H // rh, W // rw); rows and columns that fill no window are left out."""
        return window_conv(x, self.weight, self.bias)
