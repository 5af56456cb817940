"""Softmax-free attention: Nystrom's approximation of a Gaussian kernel, without or with normalisation."""

import torch
from torch import Tensor

from .checks import check, compute_dtype, no_autocast, saturating_cast
from .gaussian import gaussian_gram, gaussian_kernel, gaussian_kernel_reference
from .newton import guarded_scale, guarded_scale_reference, matrix_scale, newton_inverse, newton_oracle

RIDGE = 0.01  # SOFT inverts A + 0.01 I


def softmax_free_attention_reference(
    q: Tensor, landmarks: Tensor, v: Tensor, *, normalize: bool = True, iterations: int = 20
) -> Tensor:
    """Slow reference in float64: the N x N matrix of the paper's equation 17 (9 if not normalised)."""
    q, landmarks, v = q.double(), landmarks.double(), v.double()
    p = gaussian_kernel_reference(q, landmarks)  # (B, h, N, m)
    a = gaussian_kernel_reference(landmarks, landmarks)  # (B, h, m, m)
    if normalize:
        inverse = newton_oracle(a, guarded_scale_reference(a), iterations)
        root = a.sum(-1).rsqrt()  # D^(-1/2)
        inverse = root.unsqueeze(-1) * inverse * root.unsqueeze(-2)
    else:
        ridged = a + RIDGE * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        inverse = newton_oracle(ridged, matrix_scale(a), iterations)
    return p @ inverse @ p.transpose(-1, -2) @ v


def softmax_free_attention(
    q: Tensor,
    landmarks: Tensor,
    v: Tensor,
    normalize: bool = True,
    iterations: int = 20,
    backward: str = 'unrolled',
) -> Tensor:
    """``P A^+ P' v`` (SOFT) or ``P D^(-1/2) A^+ D^(-1/2) P' v`` (SOFT++) in O(N m d).

    q (B, h, N, d) already carries the factor d^(-1/4); landmarks (B, h, m, d); v (B, h, N, e).
    Gives (B, h, N, e) in v's dtype, computed in float32 or better whatever the autocast dtype; values
    that float16 cannot hold saturate.
    """
    if torch.jit.is_scripting():  # TorchScript knows no such contexts
        return _attend(q, landmarks, v, normalize, iterations, backward)
    check(
        q.dim() == landmarks.dim() == v.dim() == 4
        and q.shape[:2] == landmarks.shape[:2] == v.shape[:2]
        and q.shape[2] == v.shape[2]
        and q.shape[3] == landmarks.shape[3],
        'softmax_free_attention takes q (B, h, N, d), landmarks (B, h, m, d), v (B, h, N, e)',
        q=q,
        landmarks=landmarks,
        v=v,
    )
    with no_autocast(q):
        return _attend(q, landmarks, v, normalize, iterations, backward)


def _attend(
    q: Tensor,
    landmarks: Tensor,
    v: Tensor,
    normalize: bool,
    iterations: int,
    backward: str,
    ridge: float = RIDGE,
) -> Tensor:
    dtype = compute_dtype([q, landmarks, v])
    if not normalize and q.device.type == 'cpu':
        # Without normalisation large terms cancel: rounding in float32, which differs from batch to batch,
        # would show in the fifth digit. A CPU has float64 at half the speed; a GPU would pay far more.
        dtype = torch.float64
    p = gaussian_kernel(q.to(dtype), landmarks.to(dtype))  # (B, h, N, m)
    a = gaussian_gram(landmarks.to(dtype))  # (B, h, m, m)
    # P' v first: associated this way no N x m x m product arises
    context = torch.matmul(p.transpose(-1, -2), v.to(dtype))  # (B, h, m, e)
    alpha = guarded_scale(a) if normalize else matrix_scale(a)
    if backward == 'closed':
        alpha = alpha.detach()  # a constant to the closed gradient
    if normalize:
        root = a.sum(-1, keepdim=True).rsqrt()  # D^(-1/2) as (B, h, m, 1)
        context = root * torch.matmul(newton_inverse(a, alpha, iterations, backward), root * context)
    else:
        ridged = a + ridge * torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        context = torch.matmul(newton_inverse(ridged, alpha, iterations, backward), context)
    return saturating_cast(torch.matmul(p, context), v.dtype)
