"""Which rounding of tensor cores Newton's iteration bears: TF32 and 3 x TF32, simulated.

Tensor cores round float32 factors to 10 bits of mantissa (TF32) and add in float32. 3 x TF32 splits each factor into
such a number and the rest, rounded alike, and adds three of the four products. The kernels take the latter.
"""

import pytest
import torch
from helpers import relative_error

from mmsoft.ops import gaussian_gram, guarded_scale, matrix_scale, newton_oracle
from mmsoft.ops.attention import RIDGE


def tf32(x):
    """x rounded to 10 bits of mantissa, ties away from 0, as the instruction cvt.rna.tf32.f32 does."""
    return ((x.view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)


def once(a, b):
    return tf32(a) @ tf32(b)


def thrice(a, b):
    high_a, high_b = tf32(a), tf32(b)
    return (tf32(a - high_a) @ high_b + high_a @ tf32(b - high_b)) + high_a @ high_b


def newton(a, alpha, product, iterations=20):
    x = alpha * a
    for _ in range(iterations):
        x = 2 * x - product(x, product(a, x))
    return x


def inverse_errors(landmarks, normalize):
    """Errors of 20 steps relative to float64: with TF32, 3 x TF32 and float32."""
    a = gaussian_gram(landmarks.double())
    alpha = guarded_scale(a) if normalize else matrix_scale(a)
    root = a.sum(-1, keepdim=True).rsqrt() if normalize else torch.ones(())
    if not normalize:
        a = a + RIDGE * torch.eye(a.shape[-1])
    exact = root * newton_oracle(a, alpha) * root.transpose(-1, -2) if normalize else newton_oracle(a, alpha)
    errors = []
    for product in (once, thrice, torch.matmul):
        found = newton(a.float(), alpha.float(), product).double()
        errors.append(relative_error(root * found * root.transpose(-1, -2) if normalize else found, exact))
    return errors


def landmark_sets():
    """From nearly singular to nearly the identity; and of rank 3, as landmarks of a smooth map are."""
    sets = {f'spread {spread}': spread * torch.randn(2, 4, 49, 32) for spread in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)}
    return sets | {'rank 3': 0.3 * torch.randn(2, 4, 49, 3) @ torch.randn(2, 4, 3, 32)}


def test_rounding_is_the_instructions():
    assert tf32(torch.tensor([1 + 2**-11])).item() == 1 + 2**-10
    assert tf32(torch.tensor([1 + 2**-11 - 2**-20])).item() == 1
    assert tf32(torch.tensor([-1 - 2**-11])).item() == -1 - 2**-10


@pytest.mark.parametrize('normalize', [True, False], ids=['soft++', 'soft'])
def test_three_products_are_as_good_as_float32(normalize):
    for name, landmarks in landmark_sets().items():
        _, three, single = inverse_errors(landmarks, normalize)
        assert three < 1e-4, name
        assert three < max(2 * single, 1e-6), name


@pytest.mark.parametrize('normalize', [True, False], ids=['soft++', 'soft'])
def test_one_product_is_not_enough(normalize):
    errors = [inverse_errors(landmarks, normalize)[0] for landmarks in landmark_sets().values()]
    assert max(errors) > 8e-4
    assert min(errors) > 1e-4
