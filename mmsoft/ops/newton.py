"""Newton-Raphson iteration for the pseudo-inverse of Gaussian Gram matrices.

``X <- 2 X - X A X`` from ``X = alpha A`` converges to the Moore-Penrose inverse when alpha is small
enough. With ``A = U diag(l) U'``, T steps give ``U diag((1 - (1 - alpha l^2)^(2^T)) / l) U'`` exactly:
eigenvalues far below ``(alpha 2^T)^(-1/2)`` stay suppressed, so the result is bounded for any A.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import check, compute_dtype
from .dispatch import no_autocast, operator

BACKWARDS = ('unrolled', 'closed')
MAX_HALVINGS = 10


def newton_oracle(a: Tensor, alpha: Tensor, iterations: int = 20) -> Tensor:
    """Slow reference: the closed form above, by eigendecomposition of a (..., m, m), in float64."""
    values, vectors = torch.linalg.eigh(a.double())
    x = alpha.double().squeeze(-1) * values.square()
    # 1 - (1 - x)^(2^T) without cancellation for small x; the power is even, so the sign does not matter
    log_base = torch.where(x < 1, torch.log1p(-x.clamp(max=1)), torch.log((x - 1).clamp(min=0)))
    inverted = torch.where(x > 0, -torch.expm1(2**iterations * log_base) / values, torch.zeros_like(values))
    return vectors * inverted.unsqueeze(-2) @ vectors.transpose(-1, -2)


def guarded_scale_reference(a: Tensor) -> Tensor:
    """Slow reference of :func:`guarded_scale`: the loop as the paper words it, one image at a time."""
    scales = []
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    for image in a:  # (h, m, m)
        first = alpha = 2 / torch.linalg.matrix_norm(image, 1).max() ** 2
        for _ in range(MAX_HALVINGS):
            if torch.linalg.matrix_norm(eye - alpha * image @ image, 1).max() <= 1.01:
                break
            alpha = alpha / 2
        scales.append(0.95 * first if alpha == first else alpha)
    return torch.stack(scales).view(-1, 1, 1, 1)


def _example(random: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
    x = random(2, 3, 5, 8)
    a = torch.matmul(x, x.transpose(-1, -2)) / 8
    return a, matrix_scale(a)


def matrix_scale(a: Tensor) -> Tensor:
    """SOFT: ``alpha = 0.9 * 2 / |A|_1^2``, one a matrix: (..., m, m) -> (..., 1, 1)."""
    check(a.dim() >= 2 and a.shape[-1] == a.shape[-2], 'matrix_scale takes square matrices (..., m, m)', a=a)
    return 1.8 / _norm1(a).square()


@operator(guarded_scale_reference, example=lambda random: (_example(random)[0].abs(),))
def guarded_scale(a: Tensor, max_halvings: int = MAX_HALVINGS) -> Tensor:
    """SOFT++: one alpha an image, (B, h, m, m) -> (B, 1, 1, 1), for A with entries in [0, 1].

    ``2 / max_heads |A|_1^2``, halved while ``|I - alpha A A|_1 > 1.01`` in any head, ``max_halvings``
    times at most. Where it is never halved, 1.9 replaces 2: with A near I a factor of 2 sends every step to
    about 0. No norm mixes images, so an image's result does not depend on its batch.
    """
    check(a.dim() == 4 and a.shape[-1] == a.shape[-2], "guarded_scale takes an image's heads (B, h, m, m)", a=a)
    first = 2 / _norm1(a).amax(1, keepdim=True).square()  # (B, 1, 1, 1)
    # A is symmetric with entries >= 0, so column j of |I - alpha A A| sums to
    # |1 - alpha s_j| + alpha (r_j - s_j), s = diag(A A), r = A A 1: no product of matrices is needed.
    with torch.no_grad():
        rows = torch.matmul(a, a.sum(-1, keepdim=True)).squeeze(-1)  # (B, h, m)
        diagonal = a.square().sum(-1)
        halvings = torch.arange(max_halvings + 1, device=a.device, dtype=a.dtype)
        alphas = first.squeeze(-1) * torch.exp2(-halvings).view(-1, 1, 1, 1)  # (11, B, 1, 1)
        norms = ((1 - alphas * diagonal).abs() + alphas * (rows - diagonal)).amax((-1, -2))  # (11, B)
        # leading candidates that exceed the bound; the last one is taken whatever its norm
        fitting = (norms[:-1] <= 1.01).to(a.dtype).cumsum(0)  # as ONNX has no cumulative product
        exceeding = (fitting == 0).to(a.dtype).sum(0)
        factor = torch.where(exceeding > 0, torch.exp2(-exceeding), 0.95)
    return first * factor.view(-1, 1, 1, 1)


@operator(newton_oracle, example=lambda random: _example(random))
def newton_inverse(a: Tensor, alpha: Tensor, iterations: int = 20, backward: str = 'unrolled') -> Tensor:
    """Pseudo-inverse of symmetric a (..., m, m) from ``alpha a``, in at least float32.

    ``backward='unrolled'`` differentiates the iteration and alpha, by computing it again: exact.
    ``'closed'`` takes ``dA = -Y' G Y'`` (Y the result), as if Newton had converged: cheaper.
    """
    check(a.dim() >= 2 and a.shape[-1] == a.shape[-2], 'newton_inverse takes square matrices (..., m, m)', a=a)
    check(
        alpha.dim() == a.dim()
        and alpha.shape[-2:] == (1, 1)
        and all(alpha.shape[i] in (1, a.shape[i]) for i in range(a.dim() - 2)),
        'newton_inverse takes alpha (..., 1, 1), one scale a matrix or one broadcast over matrices',
        a=a,
        alpha=alpha,
    )
    check_newton(iterations, backward)
    with no_autocast(a):
        dtype = compute_dtype(a)
        a, alpha = a.to(dtype), alpha.to(dtype)
        return (_ClosedNewton if backward == 'closed' else _UnrolledNewton).apply(a, alpha, iterations)


def check_newton(iterations: int, backward: str) -> None:
    if backward not in BACKWARDS:
        raise ValueError(f'newton backward {backward!r} is unknown; choose one of {", ".join(BACKWARDS)}')
    if iterations < 1:
        raise ValueError(f'newton iterations must be at least 1; got {iterations}')


def _norm1(a: Tensor) -> Tensor:
    """Largest absolute column sum of a (..., m, m), as (..., 1, 1)."""
    return a.abs().sum(-2, keepdim=True).amax(-1, keepdim=True)


def _flat(a: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
    """(..., m, m) and (..., 1, 1) -> (n, m, m) and (n, 1, 1)."""
    alpha = alpha.expand(*a.shape[:-2], 1, 1)
    return a.reshape(-1, a.shape[-2], a.shape[-1]), alpha.reshape(-1, 1, 1)


def _step(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """2 X - X A X and A X, of (n, m, m) matrices."""
    ax = torch.bmm(a, x)
    return torch.baddbmm(x, x, ax, beta=2, alpha=-1), ax


def _iterate(a: Tensor, alpha: Tensor, iterations: int) -> Tensor:
    flat, scale = _flat(a, alpha)
    x = scale * flat
    for _ in range(iterations):
        x, _ax = _step(flat, x)
    return x.view(a.shape)


class _UnrolledNewton(torch.autograd.Function):
    """Backward runs the iteration again, so nothing of it is kept until then."""

    @staticmethod
    def forward(ctx, a: Tensor, alpha: Tensor, iterations: int) -> Tensor:
        ctx.save_for_backward(a, alpha)
        ctx.iterations = iterations
        return _iterate(a, alpha, iterations)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # Y = 2 X - X A X: dX = 2 G - G (A X)' - A' X' G, dA = -X' G X'
        a, alpha = ctx.saved_tensors
        with no_autocast(grad):
            flat, scale = _flat(a, alpha)
            grad = grad.reshape(flat.shape)
            grad_a = torch.zeros_like(flat)
            # Towards earlier steps the gradient dies away in converged directions. What can no longer
            # be seen beside the rest becomes 0 before it becomes denormal, which CPUs are slow at.
            floor = grad.abs().amax((-1, -2), keepdim=True) * torch.finfo(grad.dtype).eps ** 2
            steps, x = [], scale * flat
            for _ in range(ctx.iterations):
                following, ax = _step(flat, x)
                steps.append((x, ax))
                x = following
            for x, ax in reversed(steps):
                inner = torch.bmm(x.transpose(-1, -2), grad)
                grad_a = torch.baddbmm(grad_a, inner, x.transpose(-1, -2), alpha=-1)
                grad = torch.baddbmm(grad, grad, ax.transpose(-1, -2), beta=2, alpha=-1)
                grad = torch.baddbmm(grad, flat.transpose(-1, -2), inner, alpha=-1)
                grad = torch.where(grad.abs() < floor, 0, grad)
            grad_alpha = (grad * flat).sum((-1, -2)).view(*a.shape[:-2], 1, 1).sum_to_size(alpha.shape)
            return (grad_a + scale * grad).view(a.shape), grad_alpha, None


class _ClosedNewton(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a: Tensor, alpha: Tensor, iterations: int) -> Tensor:
        inverse = _iterate(a, alpha, iterations)
        ctx.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        transposed = inverse.transpose(-1, -2)
        with no_autocast(grad):
            return -torch.matmul(torch.matmul(transposed, grad), transposed), None, None
