"""Several linear maps of the same tokens, and perhaps the mean of these."""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .dispatch import eager_gpu, is_autocast, is_watched, no_autocast, not_plain, operator


@operator()
def project(x: Tensor, layers: tuple[nn.Module, ...], plain: type[nn.Linear], mean: bool = False) -> tuple[Tensor, ...]:
    """``layer(x)`` of each, (B, N, C) -> (B, N, K); with ``mean``, at last the mean of the tokens (B, C).

    What stands for a layer of the class ``plain``, or hangs on it, is called as it is.
    """
    projected = tuple(layer(x) for layer in layers)
    return (*projected, x.mean(1)) if mean else projected


def _against_one_sum(
    x: Tensor, layers: tuple[nn.Module, ...], plain: type[nn.Linear], mean: bool = False
) -> str | None:
    if reason := eager_gpu(x):
        return reason
    if not torch.is_grad_enabled():
        return 'there is no backward pass'
    for layer in layers:
        if type(layer) is not plain or cast(nn.Linear, layer).bias is None:
            return 'something else stands for a linear layer, or it has no bias'
        if is_watched(layer):
            return 'hooks hang on a layer'
    parameters = _parameters(layers)
    if reason := not_plain(x, *parameters):
        return reason
    # a mean's gradient, which is small and the same for all tokens, would be lost in the rounding of half precision
    if is_autocast(x) or any(t.dtype != torch.float32 for t in (x, *parameters)):
        return 'tokens or weights are not float32'
    return None if x.dim() == 3 and x.numel() else 'there are no tokens (B, N, C)'


@project.also('gpu', _against_one_sum)
def _project_gpu(
    x: Tensor, layers: tuple[nn.Module, ...], plain: type[nn.Linear], mean: bool = False
) -> tuple[Tensor, ...]:
    return _Projections.apply(x, mean, *_parameters(layers))


def _parameters(layers: tuple[nn.Module, ...]) -> list[Tensor]:
    return [cast(Tensor, p) for layer in layers for p in (layer.weight, layer.bias)]


class _Projections(torch.autograd.Function):
    """Products for the tokens' gradient add to each other and to the mean's, in place of sums of tokens after them."""

    @staticmethod
    def forward(ctx, x: Tensor, mean: bool, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(x, *parameters[::2])
        ctx.mean = mean
        projected = tuple(F.linear(x, *pair) for pair in zip(parameters[::2], parameters[1::2], strict=True))
        return (*projected, x.mean(1)) if mean else projected

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        wanted, of_mean = ctx.needs_input_grad, gradients[-1] if ctx.mean else None
        gradients = gradients[: len(weights)]
        found: list[Tensor | None] = []
        with no_autocast(x):
            for i, g in enumerate(gradients):
                rows = g.flatten(0, 1)
                found.append(rows.t() @ x.flatten(0, 1) if wanted[2 + 2 * i] else None)
                found.append(rows.sum(0) if wanted[3 + 2 * i] else None)
            return _of_tokens(gradients, weights, of_mean) if wanted[0] else None, None, *found


def _of_tokens(gradients: tuple[Tensor, ...], weights: list[Tensor], of_mean: Tensor | None) -> Tensor:
    """``sum g W``, of gradients (B, N, K) and weights (K, C), and the mean's (B, C) shared out to N tokens."""
    batch, count = gradients[0].shape[:2]
    (g, weight), *others = ((g, weight.expand(batch, -1, -1)) for g, weight in zip(gradients, weights, strict=True))
    dx = torch.bmm(g, weight) if of_mean is None else torch.baddbmm(of_mean.unsqueeze(1), g, weight, beta=1 / count)
    for g, weight in others:
        dx = dx.baddbmm_(g, weight)
    return dx
