"""Nystrom's approximation of softmax attention, with the iterative pseudo-inverse that goes with it."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check, compute_dtype, saturating_cast
from .dispatch import no_autocast


def softmax_pinv_reference(a: Tensor, iterations: int = 6) -> Tensor:
    """Slow reference in float64 of :func:`softmax_pinv`: the iteration as it is defined, a matrix at a time."""
    inverses = []
    for matrix in a.double().flatten(0, -3):
        eye = torch.eye(len(matrix), dtype=matrix.dtype)
        z = matrix.t() / (torch.linalg.matrix_norm(matrix, 1) * torch.linalg.matrix_norm(matrix, math.inf))
        for _ in range(iterations):
            az = matrix @ z
            z = z @ (13 * eye - az @ (15 * eye - az @ (7 * eye - az))) / 4
        inverses.append(z)
    return torch.stack(inverses).view(a.shape)


def softmax_pinv(a: Tensor, iterations: int = 6) -> Tensor:
    """Pseudo-inverse of row-stochastic a (..., m, m), by a third-order iteration from ``A' / (|A|_1 |A|_inf)``.

    ``Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4``. The scale is one a matrix, so nothing mixes images.
    """
    z = a.transpose(-1, -2) / (a.abs().sum(-2).amax(-1) * a.abs().sum(-1).amax(-1))[..., None, None]
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for _ in range(iterations):
        az = torch.matmul(a, z)
        inner = 15 * eye - torch.matmul(az, 7 * eye - az)
        z = torch.matmul(z, 13 * eye - torch.matmul(az, inner)) / 4
    return z


def nystrom_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, q_landmarks: Tensor, k_landmarks: Tensor, iterations: int = 6
) -> Tensor:
    """Slow reference in float64: the N x N matrix ``softmax(q l_k') softmax(l_q l_k')^+ softmax(l_q k')``, times v."""
    q, k, v, q_landmarks, k_landmarks = (t.double() for t in (q, k, v, q_landmarks, k_landmarks))
    scale = q.shape[-1] ** -0.5
    left = (scale * q @ k_landmarks.transpose(-1, -2)).softmax(-1)
    middle = (scale * q_landmarks @ k_landmarks.transpose(-1, -2)).softmax(-1)
    right = (scale * q_landmarks @ k.transpose(-1, -2)).softmax(-1)
    return left @ softmax_pinv_reference(middle, iterations) @ right @ v


def nystrom_attention(
    q: Tensor, k: Tensor, v: Tensor, q_landmarks: Tensor, k_landmarks: Tensor, iterations: int = 6
) -> Tensor:
    """``softmax(q l_k') softmax(l_q l_k')^+ softmax(l_q k') v`` in O(N m d), products scaled by d^(-1/2).

    q (B, h, N, d), k and v (B, h, M, d), landmarks (B, h, m, d) -> (B, h, N, d) in v's dtype. Both long products are
    fused softmax attention; the pseudo-inverse runs in float32 or better.
    """
    check(
        q.dim() == 4 and k.shape == v.shape and q_landmarks.shape == k_landmarks.shape and q.shape[3] == k.shape[3],
        'nystrom_attention takes q (B, h, N, d), k and v (B, h, M, d) and two sets of landmarks (B, h, m, d)',
        q=q,
        k=k,
        v=v,
        q_landmarks=q_landmarks,
        k_landmarks=k_landmarks,
    )
    dtype = compute_dtype(q, k, v)
    with no_autocast(q):
        lq, lk = q_landmarks.to(dtype), k_landmarks.to(dtype)
        middle = (torch.matmul(lq, lk.transpose(-1, -2)) * lq.shape[-1] ** -0.5).softmax(-1)
        context = F.scaled_dot_product_attention(q_landmarks.to(v.dtype), k.to(v.dtype), v)  # (B, h, m, d)
        context = torch.matmul(softmax_pinv(middle, iterations), context.to(dtype))
        return saturating_cast(F.scaled_dot_product_attention(q.to(dtype), lk, context), v.dtype)
