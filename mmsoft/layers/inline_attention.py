"""InLine attention as a layer: projections, a kernel function, the operator, a predicted local term."""

from torch import Tensor, nn

from mmsoft.ops import inline_attention, inline_with_convolution, project
from mmsoft.ops.checks import choose
from mmsoft.ops.inline import feature_map as feature_map  # where it was before

from .heads import MultiHead, grid_of
from .linear import Linear

KERNELS = ('identity', 'relu', 'leaky_relu', 'exp')


class InLineAttention(MultiHead):
    """Injective linear attention (see ops.inline), and a 3 x 3 convolution of the values.

    The convolution's kernels are predicted for every image from the mean of its tokens; tokens that lead
    the grid, as a class token, take part in the mean and the attention but not in the convolution.

    Args:
        dim: Channels, shared out to the heads.
        num_heads: Heads.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        local: Whether there is a local term.
    """

    def __init__(self, dim: int, num_heads: int, kernel: str = 'identity', local: bool = True) -> None:
        super().__init__(dim, num_heads)
        self.kernel = choose('kernel', kernel, KERNELS)
        self.predictor = KernelPredictor(dim, num_heads) if local else None

    def forward(self, x: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """x (B, T + H * W, C), T leading tokens before grid (H, W); or a sequence without a grid -> the same shape."""
        grid = grid_of(x, grid)
        if self.predictor is None:
            return self._join(inline_attention(*self._project(x), self.kernel))
        kv, q, mean = project(x, (self.kv, self.q), Linear, mean=True)
        return self.proj(inline_with_convolution(q, kv, self.predictor(mean), grid, self.num_heads, self.kernel))

    def extra_repr(self) -> str:
        return f'{super().extra_repr()}, kernel={self.kernel}'


class KernelPredictor(nn.Sequential):
    """The mean of an image's tokens -> a 3 x 3 kernel for every channel, each head from its own channels."""

    def __init__(self, dim: int, num_heads: int) -> None:
        first = nn.Conv1d(dim, dim, 1, groups=num_heads)
        super().__init__(first, nn.GELU(), nn.Conv1d(dim, 9 * dim, 1, groups=num_heads))

    def forward(self, mean: Tensor) -> Tensor:
        """mean (B, C) -> kernels (B, C, 3, 3)."""
        return super().forward(mean.unsqueeze(-1)).view(*mean.shape, 3, 3)
