"""Linear maps of tokens."""

from torch import Tensor, nn

from mmsoft.ops import linear


class Linear(nn.Linear):
    """torch's layer with the product of :func:`mmsoft.ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., N, C) -> (..., N, K)."""
        return linear(x, self.weight, self.bias)
