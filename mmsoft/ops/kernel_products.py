"""Products with the kernel matrix K = k(q, landmarks), N x m, of which no more than a slice exists at a time.

Backward keeps the queries and computes K again, so training memory does not grow with N m either.
"""

import torch
from torch import Tensor

from .checks import saturating_cast
from .dispatch import eager_cpu, eager_gpu, no_autocast, operator
from .gaussian import LEAST_EXPONENT, gaussian_kernel_reference
from .linear import linear_by_head

# Entries of K in a slice: 4 MiB in float32, which stay in a CPU's cache; 256 MiB elsewhere.
CPU_SLICE, SLICE = 2**20, 2**26
# Images of fewer entries are taken together up to so many: by itself, a small one costs less than the calls for it.
CPU_IMAGES = 2**18
# A K of so many entries is kept between two products of one forward pass.
CPU_KEPT = 2**22


def kernel_product_reference(q: Tensor, landmarks: Tensor, c: Tensor, scale: float = 1.0) -> Tensor:
    """Slow reference of :func:`kernel_product`: ``K c`` by the definition of the kernel."""
    k = gaussian_kernel_reference(scale * q.transpose(1, 2), landmarks)
    return (k @ c).transpose(1, 2)


def kernel_transposed_product_reference(q: Tensor, landmarks: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
    """Slow reference of :func:`kernel_transposed_product`: ``K' v`` by the definition of the kernel."""
    k = gaussian_kernel_reference(scale * q.transpose(1, 2), landmarks)
    return k.transpose(-1, -2) @ v.transpose(1, 2)


def kernel_slices(q: Tensor, landmarks: Tensor, scale: float = 1.0) -> list[Tensor] | None:
    """K of q (B, N, h, d) and landmarks (B, h, m, d), in slices for the two products to share; None if it is large."""
    slices, kept = slicing(q, landmarks)
    if not kept:
        return None
    with torch.no_grad(), no_autocast(q):
        return [_kernel(q[at].to(landmarks.dtype), landmarks[at[0]], scale) for at in slices]


@operator(
    kernel_product_reference,
    example=lambda random: (random(2, 9, 3, 4), random(2, 3, 5, 4), random(2, 3, 5, 6), 0.7),
)
def kernel_product(
    q: Tensor,
    landmarks: Tensor,
    c: Tensor,
    scale: float = 1.0,
    dtype: torch.dtype | None = None,
    kernels: list[Tensor] | None = None,
) -> Tensor:
    """``K c``, K = k(scale q, landmarks): q (B, N, h, d), landmarks (B, h, m, d), c (B, h, m, e) -> (B, N, h, e).

    Computed in the dtype of landmarks and c, given in ``dtype`` (c's by default); ``kernels`` are those of
    :func:`kernel_slices`.
    """
    with no_autocast(q):
        return _KernelProduct.apply(q, landmarks, c, scale, dtype or c.dtype, *(kernels or ()))


@operator(
    kernel_transposed_product_reference,
    example=lambda random: (random(2, 9, 3, 4), random(2, 3, 5, 4), random(2, 9, 3, 6), 0.7),
)
def kernel_transposed_product(
    q: Tensor, landmarks: Tensor, v: Tensor, scale: float = 1.0, kernels: list[Tensor] | None = None
) -> Tensor:
    """``K' v``, v (B, N, h, e) and the others as in :func:`kernel_product` -> (B, h, m, e) in the landmarks' dtype."""
    with no_autocast(q):
        return _KernelTransposedProduct.apply(q, landmarks, v, scale, *(kernels or ()))


class _KernelProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, landmarks: Tensor, c: Tensor, scale: float, dtype: torch.dtype, *kernels: Tensor):
        ctx.save_for_backward(q, landmarks, c)
        ctx.kernels, ctx.scale = len(kernels), scale
        y = torch.empty(q.shape[:3] + c.shape[3:], dtype=dtype, device=q.device)
        for i, at in enumerate(slicing(q, landmarks)[0]):
            kernel = kernels[i] if kernels else _kernel(q[at].to(c.dtype), landmarks[at[0]], scale)
            y[at] = saturating_cast(linear_by_head(kernel, c[at[0]].transpose(-1, -2)), dtype)
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, landmarks, c = ctx.saved_tensors
        grad_q, grad_landmarks, grad_c = torch.empty_like(q), torch.zeros_like(landmarks), torch.zeros_like(c)
        with no_autocast(grad):
            for at in slicing(q, landmarks)[0]:
                image = at[0]
                q_part, grad_part = q[at].to(c.dtype), grad[at].to(c.dtype)
                kernel = _kernel(q_part, landmarks[image], ctx.scale)
                grad_c[image] += _contract(kernel, grad_part)
                exponent = linear_by_head(grad_part, c[image]).mul_(kernel)
                grad_q[at] = _exponent_to_q(exponent, q_part, landmarks[image], ctx.scale)
                grad_landmarks[image] += _exponent_to_landmarks(exponent, q_part, landmarks[image], ctx.scale)
        return (grad_q, grad_landmarks, grad_c, None, None) + (None,) * ctx.kernels


class _KernelTransposedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q: Tensor, landmarks: Tensor, v: Tensor, scale: float, *kernels: Tensor) -> Tensor:
        ctx.save_for_backward(q, landmarks, v)
        ctx.kernels, ctx.scale = len(kernels), scale
        y = landmarks.new_zeros(landmarks.shape[:3] + v.shape[3:])
        for i, at in enumerate(slicing(q, landmarks)[0]):
            kernel = kernels[i] if kernels else _kernel(q[at].to(y.dtype), landmarks[at[0]], scale)
            y[at[0]] += _contract(kernel, v[at].to(y.dtype))
        return y

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, landmarks, v = ctx.saved_tensors
        grad_q, grad_landmarks, grad_v = torch.empty_like(q), torch.zeros_like(landmarks), torch.empty_like(v)
        with no_autocast(grad):
            for at in slicing(q, landmarks)[0]:
                image = at[0]
                q_part = q[at].to(grad.dtype)
                kernel = _kernel(q_part, landmarks[image], ctx.scale)
                grad_v[at] = linear_by_head(kernel, grad[image].transpose(-1, -2)).to(v.dtype)
                exponent = linear_by_head(v[at].to(grad.dtype), grad[image]).mul_(kernel)
                grad_q[at] = _exponent_to_q(exponent, q_part, landmarks[image], ctx.scale)
                grad_landmarks[image] += _exponent_to_landmarks(exponent, q_part, landmarks[image], ctx.scale)
        return (grad_q, grad_landmarks, grad_v, None) + (None,) * ctx.kernels


Slice = tuple[slice, slice]


@operator(example=lambda random: (random(2, 9, 3, 4), random(2, 3, 5, 4)))
def slicing(q: Tensor, landmarks: Tensor) -> tuple[list[Slice], bool]:
    """Images and tokens of K to take at a time, and whether K is kept between the two products of a forward pass."""
    return [(slice(None), slice(None))], True


@slicing.also('gpu', eager_gpu)
def _slicing_gpu(q: Tensor, landmarks: Tensor) -> tuple[list[Slice], bool]:
    slices = _cut(q, landmarks, [slice(None)], SLICE // max(q.shape[0], 1))
    return slices, len(slices) == 1


@slicing.also('cpu', eager_cpu)
def _slicing_cpu(q: Tensor, landmarks: Tensor) -> tuple[list[Slice], bool]:
    """Some small images at a time, or of a large one what stays in cache."""
    entries = q.shape[1] * q.shape[2] * landmarks.shape[2]  # of an image
    count = max(CPU_IMAGES // max(entries, 1), 1)
    images = [slice(i, i + count) for i in range(0, q.shape[0], count)]
    return _cut(q, landmarks, images, CPU_SLICE), q.shape[0] * entries <= CPU_KEPT


def _cut(q: Tensor, landmarks: Tensor, images: list[slice], entries: int) -> list[Slice]:
    """Slices of these images with at most so many entries of K for one of them."""
    length = max(entries // (q.shape[2] * landmarks.shape[2]), 1)
    return [(image, slice(i, i + length)) for image in images for i in range(0, q.shape[1], length)]


def _kernel(q: Tensor, landmarks: Tensor, scale: float) -> Tensor:
    """q (b, n, h, d), landmarks (b, h, m, d) -> K (b, n, h, m)."""
    # -|s q - l|^2 / 2 = q.(s l) - |l|^2 / 2 - s^2 |q|^2 / 2, at most 0 but for rounding
    exponent = linear_by_head(q, landmarks * scale, landmarks.square().sum(-1).div_(-2))
    exponent.sub_(q.square().sum(-1, keepdim=True).mul_(scale**2 / 2))
    return exponent.clamp_(LEAST_EXPONENT, 0.0).exp_()


def _contract(x: Tensor, y: Tensor) -> Tensor:
    """Sum over tokens of x (b, n, h, k) and y (b, n, h, e): (b, h, k, e)."""
    return torch.matmul(x.permute(0, 2, 3, 1), y.transpose(1, 2))


def _exponent_to_q(grad: Tensor, q: Tensor, landmarks: Tensor, scale: float) -> Tensor:
    """Gradient of -|s q - l|^2 / 2, grad (b, n, h, m), with respect to q: sum over m of grad s (l - s q)."""
    return linear_by_head(grad, (landmarks * scale).transpose(-1, -2)).sub_(
        grad.sum(-1, keepdim=True).mul_(scale**2) * q
    )


def _exponent_to_landmarks(grad: Tensor, q: Tensor, landmarks: Tensor, scale: float) -> Tensor:
    """The same with respect to landmarks: sum over n of grad (s q - l)."""
    return _contract(grad, q).mul_(scale).sub_(grad.sum(1).unsqueeze(-1) * landmarks)
