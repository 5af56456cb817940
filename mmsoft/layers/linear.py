"""Linear maps of tokens."""

from typing import TypeVar

from torch import Tensor, nn

from mmsoft.ops import linear

Module = TypeVar('Module', bound=nn.Module)


class Linear(nn.Linear):
    """torch's layer with the product of :func:`mmsoft.ops.linear`."""

    def forward(self, x: Tensor) -> Tensor:
        """x (..., N, C) -> (..., N, K)."""
        return linear(x, self.weight, self.bias)


def with_torch_linears(model: Module) -> Module:
    """The model, whose linear layers become torch's own class in place, with the same weights.

    It is for tools that pass subclasses by without a word, as ``torch.ao.quantization.quantize_dynamic`` does.
    """
    for module in model.modules():
        if type(module) is Linear:
            module.__class__ = nn.Linear  # pyright: ignore[reportAttributeAccessIssue]
    return model
