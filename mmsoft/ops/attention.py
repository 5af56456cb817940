"""Softmax-free attention: Nystrom's approximation of a Gaussian kernel, without or with normalisation."""

from typing import Any

import torch
from torch import Tensor

from .checks import check, compute_dtype
from .dispatch import has_fast_float64, no_autocast, no_triton, operator
from .gaussian import gaussian_gram, gaussian_kernel_reference
from .kernel_products import kernel_product, kernel_slices, kernel_transposed_product
from .newton import check_newton, guarded_scale, guarded_scale_reference, matrix_scale, newton_inverse, newton_oracle

RIDGE = 0.01  # SOFT inverts A + 0.01 I


def softmax_free_attention_reference(
    q: Tensor,
    landmarks: Tensor,
    v: Tensor,
    *,
    normalize: bool = True,
    iterations: int = 20,
    k: Tensor | None = None,
    scale: float = 1.0,
    gain: float | Tensor = 1.0,
) -> Tensor:
    """Slow reference in float64: the N x N matrix of the paper's equation 17 (9 if not normalised)."""
    q, landmarks, v = scale * q.double(), landmarks.double(), v.double()
    p = gaussian_kernel_reference(q, landmarks)  # (B, h, N, m)
    pk = p if k is None else gaussian_kernel_reference(scale * k.double(), landmarks)
    a = gaussian_kernel_reference(landmarks, landmarks)  # (B, h, m, m)
    if normalize:
        inverse = newton_oracle(a, guarded_scale_reference(a), iterations)
        root = a.sum(-1).rsqrt()  # D^(-1/2)
        inverse = root.unsqueeze(-1) * inverse * root.unsqueeze(-2)
    else:
        ridged = a + RIDGE * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        inverse = newton_oracle(ridged, matrix_scale(a), iterations)
    return gain * (p @ inverse @ pk.transpose(-1, -2) @ v)


@operator(
    softmax_free_attention_reference,
    example=lambda random: (random(2, 3, 20, 8), random(2, 3, 5, 8), random(2, 3, 20, 8)),
)
def softmax_free_attention(
    q: Tensor,
    landmarks: Tensor,
    v: Tensor,
    normalize: bool = True,
    iterations: int = 20,
    backward: str = 'unrolled',
    k: Tensor | None = None,
    scale: float = 1.0,
    gain: float | Tensor = 1.0,
) -> Tensor:
    """``P A^+ P' v`` (SOFT) or ``P D^(-1/2) A^+ D^(-1/2) P' v`` (SOFT++) in O(N m d).

    Queries are keys as well, unless keys k (B, h, N, d) are given: then P' is of these, as Nystrom's
    approximation of k(q, k) from one set of landmarks has it. q (B, h, N, d) and k are multiplied by ``scale``;
    landmarks (B, h, m, d) already carry it. v (B, h, N, e). All is multiplied by ``gain``, a number or one in a tensor.
    Gives (B, h, N, e) in v's dtype, computed in float32 or better whatever the autocast dtype; values
    that float16 cannot hold saturate.
    """
    dtype = compute_dtype(q, landmarks, v)
    if not normalize and has_fast_float64(q):
        # Without normalisation large terms cancel: rounding in float32, which differs from batch to batch,
        # would show in the fifth digit.
        dtype = torch.float64
    landmarks = landmarks.to(dtype)
    _check_shapes(q, landmarks, v, k)
    q = q.transpose(1, 2)  # tokens before heads, as they lie in memory
    # P' v first: associated this way no N x m x m product arises
    kernels = kernel_slices(q, landmarks, scale) if k is None else None
    keys = q if k is None else k.transpose(1, 2)
    context = kernel_transposed_product(keys, landmarks, v.transpose(1, 2), scale, kernels)  # (B, h, m, e)
    with no_autocast(q):
        context = _apply_inverse(landmarks, context, normalize, iterations, backward)
        context = _multiplied(context, gain)
    return kernel_product(q, landmarks, context, scale, v.dtype, kernels).transpose(1, 2)


def _against_triton(q: Tensor, landmarks: Tensor, v: Tensor, *options: Any, **more: Any) -> str | None:
    k = more.get('k', options[3] if len(options) > 3 else None)
    if reason := no_triton(q, landmarks, v, k):
        return reason
    if landmarks.dim() == 4 and landmarks.shape[2] > 64:
        return 'there are more than 64 landmarks'
    return 'heads are wider than 32 channels' if max(q.shape[-1], v.shape[-1]) > 32 else None


@softmax_free_attention.also('triton', _against_triton)
def _softmax_free_attention_triton(
    q: Tensor,
    landmarks: Tensor,
    v: Tensor,
    normalize: bool = True,
    iterations: int = 20,
    backward: str = 'unrolled',
    k: Tensor | None = None,
    scale: float = 1.0,
    gain: float | Tensor = 1.0,
) -> Tensor:
    """No more than tiles of P and no step of Newton's iteration ever lie in memory."""
    from .triton.kernel_products import nystrom_product
    from .triton.landmark_inverse import landmark_inverse

    _check_shapes(q, landmarks, v, k)
    check_newton(iterations, backward)
    inverse = _multiplied(landmark_inverse(landmarks, normalize, iterations, backward), gain)
    keys = None if k is None else k.transpose(1, 2)
    return nystrom_product(q.transpose(1, 2), landmarks, v.transpose(1, 2), inverse, keys, scale).transpose(1, 2)


def _multiplied(x: Tensor, gain: float | Tensor) -> Tensor:
    return x * gain if isinstance(gain, Tensor) or gain != 1 else x


def _check_shapes(q: Tensor, landmarks: Tensor, v: Tensor, k: Tensor | None) -> None:
    check(
        q.dim() == landmarks.dim() == v.dim() == 4
        and q.shape[:2] == landmarks.shape[:2] == v.shape[:2]
        and q.shape[2] == v.shape[2]
        and q.shape[3] == landmarks.shape[3]
        and (k is None or k.shape == q.shape),
        'softmax_free_attention takes q (B, h, N, d), landmarks (B, h, m, d), v (B, h, N, e)',
        q=q,
        landmarks=landmarks,
        v=v,
    )


def landmark_matrices(landmarks: Tensor, normalize: bool) -> tuple[Tensor, Tensor, Tensor]:
    """A = k(landmarks, landmarks) (B, h, m, m), what Newton's iteration inverts, and the scale alpha of its start."""
    a = gaussian_gram(landmarks)
    if normalize:
        return a, a, guarded_scale(a)
    return a, a + RIDGE * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device), matrix_scale(a)


def _apply_inverse(landmarks: Tensor, context: Tensor, normalize: bool, iterations: int, backward: str) -> Tensor:
    """A^+ times context (B, h, m, e), or D^(-1/2) A^+ D^(-1/2) times it, for A = k(landmarks, landmarks)."""
    a, inverted, alpha = landmark_matrices(landmarks, normalize)
    if backward == 'closed':
        alpha = alpha.detach()  # a constant to the closed gradient
    inverse = newton_inverse(inverted, alpha, iterations, backward)
    if normalize:
        root = a.sum(-1, keepdim=True).rsqrt()  # D^(-1/2) as (B, h, m, 1)
        return root * torch.matmul(inverse, root * context)
    return torch.matmul(inverse, context)
