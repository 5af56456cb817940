"""The Gaussian kernel ``k(x, y) = exp(-|x - y|^2 / 2)`` between two sets of vectors."""

import torch
from torch import Tensor

from .checks import check, compute_dtype
from .dispatch import no_autocast

# Exponents stop here: exp(-40) = 4e-18 is nothing beside the kernel's 1, while smaller values and their
# products would be denormal numbers, on which CPUs take many times as long.
LEAST_EXPONENT = -40.0


def gaussian_kernel_reference(x: Tensor, y: Tensor) -> Tensor:
    """The definition, by differences: (..., N, d), (..., m, d) -> (..., N, m), O(N m d) memory."""
    difference = x.unsqueeze(-2) - y.unsqueeze(-3)  # (..., N, m, d)
    return torch.exp(-difference.square().sum(-1) / 2)


def gaussian_kernel(x: Tensor, y: Tensor) -> Tensor:
    """Kernel matrix between x (..., N, d) and y (..., m, d): (..., N, m), at least float32.

    Exponents are formed in float32 under any autocast dtype: in half precision a squared distance
    of 10 would be off by several per cent once it is exponentiated.
    """
    check(
        x.dim() >= 2 and x.dim() == y.dim() and x.shape[-1] == y.shape[-1],
        'gaussian_kernel takes x (..., N, d) and y (..., m, d) of one width d',
        x=x,
        y=y,
    )
    dtype = compute_dtype(x, y)
    with no_autocast(x):
        x, y = x.to(dtype), y.to(dtype)
        # -|x - y|^2 / 2 = x.y - |x|^2 / 2 - |y|^2 / 2, at most 0 but for rounding
        half_x, half_y = x.square().sum(-1, keepdim=True) / 2, y.square().sum(-1) / 2
        return _bounded_exp(torch.matmul(x, y.transpose(-1, -2)) - half_x - half_y.unsqueeze(-2))


def gaussian_gram(x: Tensor) -> Tensor:
    """Kernel matrix of x (..., m, d) with itself: (..., m, m), symmetric, with an exact diagonal of 1.

    Norms are read off the diagonal of the product, so that the exponent of a point with itself
    cancels exactly however long the vectors are.
    """
    check(x.dim() >= 2, 'gaussian_gram takes x (..., m, d)', x=x)
    with no_autocast(x):
        x = x.to(compute_dtype(x))
        product = torch.matmul(x, x.transpose(-1, -2))
        half = product.diagonal(dim1=-2, dim2=-1) / 2
        return _bounded_exp(product - half.unsqueeze(-1) - half.unsqueeze(-2))


def _bounded_exp(exponent: Tensor) -> Tensor:
    return exponent.clamp(LEAST_EXPONENT, 0.0).exp()
