"""Positive random features of the softmax kernel (FAVOR+): ``exp(q.k) = E[phi(q).phi(k)]`` over Gaussian directions."""

import math

import torch
from torch import Tensor

from .checks import compute_dtype
from .dispatch import no_autocast

# Added to every feature after scaling: no query's weights are all 0.
FLOOR = 1e-6


def positive_features_reference(x: Tensor, directions: Tensor, keys: bool) -> Tensor:
    """Slow reference in float64 of :func:`positive_features`, one direction at a time."""
    x, directions = x.double(), directions.double()
    logs = torch.stack([(x * w).sum(-1) - x.square().sum(-1) / 2 for w in directions], -1)
    largest = logs.flatten(2).max(2).values[..., None, None] if keys else logs.max(-1, keepdim=True).values
    return (torch.exp(logs - largest.detach()) + FLOOR) / math.sqrt(len(directions))


def positive_features(x: Tensor, directions: Tensor, keys: bool) -> Tensor:
    """``(exp(w.x - |x|^2 / 2 - c) + FLOOR) / sqrt(f)`` for each of f directions w, in float32 or better.

    x (B, h, N, d), directions (f, d) -> (B, h, N, f). The scale exp(-c), which cancels where weights are divided by
    their sums, makes the largest feature 1: of each query, or of all ``keys`` of an image's head.
    """
    with no_autocast(x):
        x = x.to(compute_dtype(x))
        logs = torch.matmul(x, directions.to(x.dtype).t())
        if keys:  # a query's own norm is a factor of all its features, which cancels
            logs = logs - x.square().sum(-1, keepdim=True) / 2
        # the scale is a constant to the gradient: it cancels
        largest = logs.detach().amax((2, 3) if keys else -1, keepdim=True)
        return ((logs - largest).exp() + FLOOR) / math.sqrt(len(directions))


def orthogonal_directions(count: int, dim: int, seed: int) -> Tensor:
    """Directions (count, dim) from a seed: orthogonal in blocks of ``dim``, as long as Gaussian vectors; on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for _ in range(math.ceil(count / dim)):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, device='cpu'))
        blocks.append((q * r.diagonal().sign()).t())  # without the signs, not all rotations are equally likely
    lengths = torch.randn(count, dim, generator=generator, device='cpu').norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:count] * lengths
