"""Linear attention: non-negative features of queries and keys in place of the exponential of their product."""

import torch
from torch import Tensor

from .checks import check, compute_dtype, saturating_cast
from .dispatch import no_autocast, no_triton, operator

# Where a query's weights sum to less than this, as with features that are all 0, its output fades to 0.
LEAST_SUM = 1e-12


def linear_attention_reference(q: Tensor, k: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """Slow reference in float64: the N x N matrix of weights, whose rows are divided by their sums."""
    weights = q.double() @ k.double().transpose(-1, -2) / k.shape[-2]
    return weights / (weights.sum(-1, keepdim=True).clamp(min=LEAST_SUM) + epsilon) @ v.double()


@operator(
    linear_attention_reference,
    example=lambda random: (random(2, 3, 9, 4).abs(), random(2, 3, 7, 4).abs(), random(2, 3, 7, 5)),
)
def linear_attention(q: Tensor, k: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    """``q mean(k' v) / (q mean(k) + epsilon)`` in O(N f e), for features of queries and keys that are at least 0.

    q (B, h, N, f), k (B, h, M, f), v (B, h, M, e) -> (B, h, N, e) in v's dtype, computed in float32 or better.
    """
    _check_shapes(q, k, v)
    dtype = compute_dtype(q, k, v)
    with no_autocast(q):
        q, k = q.to(dtype), k.to(dtype)
        # means over keys, not sums, so that nothing grows with their number
        context = torch.matmul(k.transpose(-1, -2), v.to(dtype)) / k.shape[2]  # (B, h, f, e)
        total = torch.matmul(q, k.mean(2).unsqueeze(-1)).clamp(min=LEAST_SUM)  # (B, h, N, 1)
        return saturating_cast(torch.matmul(q, context) / (total + epsilon), v.dtype)


def _against_triton(q: Tensor, k: Tensor, v: Tensor, epsilon: float = 0.0) -> str | None:
    if reason := no_triton(q, k, v):
        return reason
    if max(q.shape[-1], v.shape[-1]) > 64:
        return 'there are more than 64 features, or values are wider than 64 channels'
    return None if q.numel() and v.numel() else 'there are no tokens'


@linear_attention.also('triton', _against_triton)
def _linear_attention_triton(q: Tensor, k: Tensor, v: Tensor, epsilon: float = 0.0) -> Tensor:
    from .triton import linear_attention as on_gpu

    _check_shapes(q, k, v)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return on_gpu.linear_attention(q, k, v, LEAST_SUM, epsilon).transpose(1, 2)


def _check_shapes(q: Tensor, k: Tensor, v: Tensor) -> None:
    check(
        q.dim() == k.dim() == v.dim() == 4 and q.shape[3] == k.shape[3] and k.shape[:3] == v.shape[:3],
        'linear_attention takes features q (B, h, N, f) and k (B, h, M, f), and v (B, h, M, e)',
        q=q,
        k=k,
        v=v,
    )
