"""Products with the kernel matrix in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error

from mmsoft.ops.gaussian import gaussian_kernel_reference
from mmsoft.ops.triton.kernel_products import chunk_of, nystrom_product

SCALE = 0.5


def reference(q, landmarks, v, matrix, k=None):
    """The definition, in float64."""
    q, landmarks, v, matrix = q.double(), landmarks.double(), v.double(), matrix.double()
    p = gaussian_kernel_reference(SCALE * q.transpose(1, 2), landmarks)
    pk = p if k is None else gaussian_kernel_reference(SCALE * k.double().transpose(1, 2), landmarks)
    return (p @ (matrix @ (pk.transpose(-1, -2) @ v.transpose(1, 2)))).transpose(1, 2)


def tensors(shape, dtype=torch.float32, keys=False, spread=0.3):
    """q, landmarks, v, M and perhaps k of a shape (B, N, h, m, d, e), by their places in the call."""
    batch, n, heads, m, d, e = shape
    q, k = (spread * torch.randn(batch, n, heads, d).to(dtype) for _ in range(2))
    landmarks = spread * torch.randn(batch, heads, m, d)
    inputs = [q, landmarks.to(dtype), torch.randn(batch, n, heads, e).to(dtype), torch.randn(batch, heads, m, m)]
    return [*inputs, k] if keys else inputs


def check(inputs, tolerance):
    single = [x.detach().requires_grad_() for x in inputs]
    double = [x.detach().double().requires_grad_() for x in inputs]
    found, expected = nystrom_product(*single, scale=SCALE), reference(*double)
    half = torch.finfo(inputs[2].dtype).eps
    assert found.dtype == inputs[2].dtype
    assert relative_error(found, expected) < max(tolerance, half)
    weight = torch.randn_like(expected).to(found.dtype)
    exact = torch.autograd.grad(expected, double, weight.double())
    for x, gradient, one in zip(inputs, torch.autograd.grad(found, single, weight), exact, strict=True):
        assert gradient.dtype == x.dtype
        assert relative_error(gradient, one) < max(tolerance, torch.finfo(x.dtype).eps)


SHAPES = [
    (2, 37, 3, 11, 8, 8),
    (1, 1, 1, 1, 16, 16),
    (1, 150, 2, 49, 32, 32),
    (1, 70, 1, 64, 64, 48),
    (1, 300, 1, 45, 24, 24),
]


@pytest.mark.parametrize('keys', [False, True], ids=['symmetric', 'asymmetric'])
@pytest.mark.parametrize('shape', SHAPES, ids=str)
def test_values_and_gradients(shape, keys):
    check(tensors(shape, keys=keys), 1e-5)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """The arithmetic is float32: half costs no more than the rounding of what is stored."""
    check(tensors((2, 70, 2, 13, 16, 16), dtype), 1e-5)
    check(tensors((1, 70, 2, 13, 16, 16), dtype, keys=True), 1e-5)
    q, landmarks, v, matrix = tensors((1, 70, 2, 13, 16, 16), dtype)
    check((q, landmarks.float(), v, matrix), 1e-5)  # as landmarks are under autocast


def test_float16_saturates():
    q, landmarks, v, matrix = tensors((1, 20, 1, 3, 16, 16), torch.float16)
    found = nystrom_product(q, landmarks, v, 1e6 * matrix)
    assert found.isfinite().all()
    assert found.abs().max() == 65504
    assert nystrom_product(q, landmarks, v, matrix * float('nan')).isnan().all()


def test_strides():
    """Slices of a joint projection, tokens of a map that is not channels last: read in place, to the same bits."""
    batch, n, heads, m, d = 2, 70, 2, 9, 16
    joint = 0.3 * torch.randn(batch, n, 2 * heads * d)
    q, v = (x.unflatten(-1, (heads, d)) for x in joint.chunk(2, -1))
    planes = torch.randn(batch, heads * d, n).transpose(1, 2).unflatten(-1, (heads, d))
    landmarks = 0.3 * torch.randn(batch, m, heads, d).transpose(1, 2)
    matrix = torch.randn(batch, heads, m, m)
    for inputs in ((q, landmarks, v, matrix), (planes, landmarks, v, matrix, q)):
        check(inputs, 1e-5)
        assert torch.equal(nystrom_product(*inputs), nystrom_product(*(x.contiguous() for x in inputs)))
    gradient = torch.randn(1, 1, 1, 1).expand(batch, n, heads, d)  # as that of a sum is
    x = q.detach().requires_grad_()
    (found,) = torch.autograd.grad(nystrom_product(x, landmarks, v, matrix), x, gradient)
    (same,) = torch.autograd.grad(nystrom_product(x, landmarks, v, matrix), x, gradient.contiguous())
    assert torch.equal(found, same)


def test_batches_and_runs_do_not_change_a_bit():
    """Images of wildly different scales beside each other."""
    images = [tensors((1, 300, 2, 9, 16, 16), spread=spread) for spread in (0.3, 30.0, 1e-3)]
    together = [torch.cat(parts).requires_grad_() for parts in zip(*images, strict=True)]
    found = nystrom_product(*together, scale=SCALE)
    gradients = torch.autograd.grad(found.square().sum(), together)
    assert torch.equal(found, nystrom_product(*together, scale=SCALE))
    for i, image in enumerate(images):
        image = [x.requires_grad_() for x in image]
        alone = nystrom_product(*image, scale=SCALE)
        assert torch.equal(alone, found[i : i + 1])
        for one, all_images in zip(torch.autograd.grad(alone.square().sum(), image), gradients, strict=True):
            assert torch.equal(one, all_images[i : i + 1])


def test_chunks_follow_from_the_number_of_tokens():
    assert [chunk_of(n) for n in (1, 300, 4200, 16800, 67200, 10**6)] == [128, 128, 128, 512, 1024, 1024]
