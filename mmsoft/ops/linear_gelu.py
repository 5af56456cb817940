"""A linear layer with the GELU after it."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dispatch import is_graph, is_watched, no_triton, operator
from .gelu import gelu_tanh

# In float32 a product is three of tensor cores. Wider layers leave more products to a value that need not be moved, and
# GPUs whose tensor cores are not far ahead would lose by it.
WIDEST_FLOAT32 = 256


def linear_gelu_reference(x: Tensor, weight: Tensor, bias: Tensor, approximate: str) -> Tensor:
    """Slow reference in float64: one sum of products a value, and the definition of GELU."""
    h = (x.double().unsqueeze(-2) * weight.double()).sum(-1) + bias.double()
    if approximate == 'tanh':
        return 0.5 * h * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (h + 0.044715 * h**3)))
    return 0.5 * h * (1 + torch.special.erf(h / 2**0.5))


@operator(example=lambda random: (random(2, 5, 8), nn.Linear(8, 12), nn.Linear, 'none'))
def linear_gelu(x: Tensor, layer: nn.Module, plain: type[nn.Linear], approximate: str) -> Tensor:
    """GELU, exact or its tanh approximation, of ``layer(x)``: (..., C) -> (..., K).

    What stands for a layer of the class ``plain``, or hangs on it, is called as it is.
    """
    hidden = layer(x)
    return gelu_tanh(hidden) if approximate == 'tanh' else F.gelu(hidden)


def _against_triton(x: Tensor, layer: nn.Module, plain: type[nn.Linear], approximate: str) -> str | None:
    if type(layer) is not plain or cast(nn.Linear, layer).bias is None:
        return 'something else stands for the linear layer, or it has no bias'
    weight, bias = cast(Tensor, layer.weight), cast(Tensor, layer.bias)
    if reason := no_triton(x, weight, bias):
        return reason
    if not is_graph() and is_watched(layer):  # graphs keep no hooks
        return 'hooks hang on the layer'
    dtype = _dtype(x)
    if x.dtype == dtype and (weight.dtype != dtype or bias.dtype != dtype) and not _in_autocast(x):
        return 'tokens and weights differ in dtype'
    if dtype == torch.float32 and x.shape[-1] > WIDEST_FLOAT32:
        return f'tokens are wider than {WIDEST_FLOAT32} in float32'
    return None if x.numel() else 'there are no tokens'


@linear_gelu.also('triton', _against_triton)
def _linear_gelu_triton(x: Tensor, layer: nn.Module, plain: type[nn.Linear], approximate: str) -> Tensor:
    from .triton import linear_gelu

    dtype, weight, bias = _dtype(x), cast(Tensor, layer.weight), cast(Tensor, layer.bias)
    rows = x.flatten(0, -2).to(dtype)
    a, _ = linear_gelu.linear_gelu(
        rows, weight.to(dtype), bias.to(dtype), approximate == 'tanh', torch.is_grad_enabled()
    )
    return a.unflatten(0, x.shape[:-1])


def _in_autocast(x: Tensor) -> bool:
    return x.device.type == 'cuda' and torch.is_autocast_enabled('cuda')


def _dtype(x: Tensor) -> torch.dtype:
    """In which the product is made: autocast's, as linear layers have it, or that of the tokens."""
    return torch.get_autocast_dtype('cuda') if _in_autocast(x) else x.dtype
