"""Numbers of every attention layer, to see whether it learns: sizes, the landmarks' matrix, gradients, entropy.

``diagnose`` leaves no trace in the model: a training hook may call it between two steps.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from mmsoft.layers import Block, Landmarks, SoftAttention
from mmsoft.ops import gaussian_kernel
from mmsoft.ops.attention import landmark_matrices

from .attention import attention_rows, without_local
from .fields import stage_maps
from .looking import Look, attention_layers, backbone_of, evaluating, hooked, look, values_of
from .newton import landmarks_of, newton_residuals

ROWS = 16  # queries, evenly chosen, whose rows' entropy counts
TOLERANCE = 1e-6  # eigenvalues above it, of the largest, make the rank
Row = dict[str, Any]


def diagnose(
    model: nn.Module,
    image: Tensor,
    loss: Callable[[], Tensor] | None = None,
    stages: Sequence[int] | None = None,
    entropy: bool = True,
) -> list[Row]:
    """A row a layer for an image (1, 3, H, W); what a layer does not have is left out.

    Root mean squares: ``residual``, what enters the block; ``attention`` and ``local``, the two terms that the last
    projection takes; ``added`` and ``mlp``, what is added to the residual.
    Of the landmarks' matrix A, over heads: ``rank`` (mean), ``condition`` (median of the largest over the smallest
    eigenvalue), ``newton_residual`` (``|A X A - A| / |A|``, the largest). ``near_one`` and ``near_zero``: shares of the
    kernel P between queries and landmarks beyond 0.99 and below 0.01.
    ``entropy``: of rows of absolute weights, over its most (1: all tokens alike).
    ``grad_q``, ``grad_k``, ``grad_landmarks``, ``grad_v``: norms of the gradient of ``loss()``, which must run the
    model; without one, of a fixed random sum of the model's maps, whose norms compare layers with one another only.
    """
    backbone = backbone_of(model)
    sizes = _sizes(backbone, image, stages)
    rows = []
    with torch.no_grad():
        for seen in look(model, image, stages):
            row: Row = dict(layer=seen.name, stage=seen.stage, attention_type=type(seen.layer).__name__)
            row |= sizes[seen.name] | _terms(seen)
            if isinstance(seen.layer, SoftAttention):
                row |= _kernels(seen)
            if entropy:
                row['entropy'] = _entropy(seen)
            rows.append(row)
    gradients = _gradients(model, image, loss, stages)
    return [row | gradients[row['layer']] for row in rows]


def _rms(x: Tensor) -> float:
    return x.double().square().mean().sqrt().item()


@torch.no_grad()
def _sizes(backbone: nn.Module, image: Tensor, stages: Sequence[int] | None) -> dict[str, dict[str, float]]:
    """By layer, what enters its block and what is added to that."""
    found: dict[str, dict[str, float]] = {name: {} for name in attention_layers(backbone, stages)}
    hooks = []
    for name, sizes in found.items():
        layer = backbone.get_submodule(name)
        hooks.append((layer, lambda _, __, output, sizes=sizes: sizes.update(added=_rms(output))))
        block = backbone.get_submodule(name.rpartition('.')[0])
        if isinstance(block, Block):
            hooks.append((block, lambda _, inputs, __, sizes=sizes: sizes.update(residual=_rms(inputs[0]))))
            hooks.append((block.mlp, lambda _, __, output, sizes=sizes: sizes.update(mlp=_rms(output))))
    with evaluating(backbone), hooked(*hooks):
        stage_maps(backbone, image)
    return found


def _terms(seen: Look) -> dict[str, float]:
    """Root mean squares of attention and local term, before the last projection."""
    joined = []

    def keep(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        joined.append(inputs[0])

    with evaluating(seen.layer), hooked((seen.layer.proj, keep)):
        for weights in ({}, without_local(seen.layer)):
            functional_call(seen.layer, weights, (seen.x, seen.grid, *seen.more))
    both, alone = joined
    return dict(attention=_rms(alone), local=_rms(both - alone))


def _kernels(seen: Look) -> dict[str, float]:
    """Of A and P of a SOFT layer."""
    layer, landmarks = seen.layer, landmarks_of(seen)
    a, inverted, alpha = landmark_matrices(landmarks, layer.normalize)
    values = torch.linalg.eigvalsh(a.double())[0].clamp(min=0)  # (h, m), rising
    largest = values[:, -1:]
    rank = (values > TOLERANCE * largest).sum(-1).double().mean().item()
    condition = (largest[:, 0] / values[:, 0].clamp(min=torch.finfo(a.dtype).eps)).median().item()
    residual = newton_residuals(inverted, alpha, layer.newton_iters)[..., -1].max().item()
    q = layer.q(seen.x).unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) * layer.head_dim**-0.25
    p = gaussian_kernel(q, landmarks.to(q.dtype))
    near_one, near_zero = ((p > 0.99).float().mean().item(), (p < 0.01).float().mean().item())
    return dict(
        landmarks=landmarks.shape[2],
        rank=rank,
        condition=condition,
        newton_residual=residual,
        near_one=near_one,
        near_zero=near_zero,
    )


def _entropy(seen: Look) -> float:
    """Of rows of absolute weights, over that of equal ones."""
    count = seen.x.shape[1]
    if count == 1:
        return 1.0
    picked = np.unique(np.linspace(0, count - 1, ROWS).round().astype(int)).tolist()
    rows = attention_rows(seen.layer, seen.x, seen.grid, picked, *seen.more).abs().double()
    shares = rows / rows.sum(-1, keepdim=True).clamp(min=1e-300)
    return (torch.special.entr(shares).sum(-1).mean() / math.log(count)).item()


def _gradients(
    model: nn.Module, image: Tensor, loss: Callable[[], Tensor] | None, stages: Sequence[int] | None
) -> dict[str, dict[str, float]]:
    """By layer, norms of gradients to what its projections and landmarks give."""
    backbone = backbone_of(model)
    layers = attention_layers(model, stages)
    kept: dict[tuple[str, str], Tensor] = {}
    hooks = []
    for name, layer in layers.items():
        parts = dict(values=values_of(layer), q=getattr(layer, 'q', None), k=getattr(layer, 'k', None))
        parts['landmarks'] = layer.landmarks if isinstance(getattr(layer, 'landmarks', None), Landmarks) else None
        for part, module in parts.items():
            if isinstance(module, nn.Module):
                hooks.append(
                    (module, lambda _, __, output, key=(name, part): _keep(kept, key, output)),
                )
    with torch.enable_grad(), torch.random.fork_rng(enabled=loss is not None), evaluating(model), hooked(*hooks):
        value = _random_sum(backbone, image) if loss is None else loss()
        gradients = torch.autograd.grad(value, list(kept.values()), allow_unused=True)
    found: dict[str, dict[str, float]] = {name: {} for name in layers}
    for (name, part), gradient in zip(kept, gradients, strict=True):
        if gradient is None:
            continue
        for key, piece in _pieces(part, gradient, layers[name].proj.in_features):
            found[name][key] = piece.double().norm().item()
    return found


def _keep(kept: dict[tuple[str, str], Tensor], key: tuple[str, str], output: Tensor) -> Tensor:
    """What goes on from a module, as what gradients are asked of, also where all before it is frozen."""
    kept[key] = output if output.requires_grad else output.requires_grad_()
    return kept[key]


def _pieces(part: str, gradient: Tensor, width: int) -> list[tuple[str, Tensor]]:
    """Of stacked projections, each; the last ``width`` channels are the values'."""
    if part != 'values':
        return [(f'grad_{part}', gradient)]
    names = ('grad_v', 'grad_k', 'grad_q')
    return list(zip(names, reversed(gradient.split(width, -1)), strict=False))


def _random_sum(backbone: nn.Module, image: Tensor) -> Tensor:
    """Maps times fixed random numbers, over the root of their number."""
    total = image.new_zeros(())
    for stage, features in stage_maps(backbone, image).items():
        generator = torch.Generator().manual_seed(stage)
        numbers = torch.randn(features.shape, generator=generator).to(features)
        total = total + (features * numbers).sum() / math.sqrt(features.numel())
    return total
