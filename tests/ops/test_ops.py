"""Operators against their references: values, gradients, precision, degenerate input, bad input."""

import pytest
import torch
from helpers import relative_error
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from mmsoft.ops import (
    explain,
    gaussian_gram,
    gaussian_kernel,
    gaussian_kernel_reference,
    gelu_tanh,
    gelu_tanh_reference,
    guarded_scale,
    guarded_scale_reference,
    kernels,
    linear,
    matrix_scale,
    newton_inverse,
    newton_oracle,
    project,
    projections,
    scattered_indices,
    softmax_free_attention,
    softmax_free_attention_reference,
    to_landmark_windows,
)
from mmsoft.ops import kernel_products as products
from mmsoft.ops.kernel_products import (
    kernel_product,
    kernel_product_reference,
    kernel_transposed_product,
    kernel_transposed_product_reference,
)
from mmsoft.ops.linear import linear_by_head

SHAPES = [(2, 3, 37, 11, 8), (1, 1, 5, 1, 4), (2, 2, 50, 64, 16)]  # B, h, N, m, d


def tensors(shape, dtype=torch.float32, scale=1.0):
    """Queries and values of this scale; landmarks a little off some of the queries, so that no kernel vanishes."""
    batch, heads, tokens, landmarks, width = shape
    q, v = (torch.randn(batch, heads, tokens, width) * scale for _ in range(2))
    lm = q[:, :, torch.arange(landmarks) % tokens] + 0.2 * torch.randn(batch, heads, landmarks, width)
    return q.to(dtype), lm.to(dtype), v.to(dtype)


@pytest.mark.parametrize('shape', SHAPES)
def test_kernel_is_the_definition(shape):
    q, lm, _ = tensors(shape)
    assert relative_error(gaussian_kernel(q, lm), gaussian_kernel_reference(q.double(), lm.double())) < 1e-5
    gram = gaussian_gram(lm)
    assert relative_error(gram, gaussian_kernel_reference(lm.double(), lm.double())) < 1e-5
    assert torch.equal(gram.diagonal(dim1=-2, dim2=-1), torch.ones(lm.shape[:-1]))
    long = gaussian_gram(1e3 * lm)  # the diagonal does not suffer from the length of the vectors
    assert torch.equal(long.diagonal(dim1=-2, dim2=-1), torch.ones(lm.shape[:-1]))
    assert long.max() <= 1


def test_kernel_gradients():
    q, lm, _ = (x.double().requires_grad_() for x in tensors((1, 2, 7, 5, 3)))
    assert torch.autograd.gradcheck(gaussian_kernel, (q, lm))
    assert torch.autograd.gradcheck(gaussian_gram, (lm,))


def agree(found, expected, inputs, wide, tolerance):
    """Values and all gradients of ``found`` (from inputs) are those of ``expected`` (from wide, in float64)."""
    assert found.shape == expected.shape
    assert relative_error(found, expected) < tolerance
    weight = torch.randn_like(expected)
    gradients = torch.autograd.grad(found, inputs, weight.to(found.dtype))
    for gradient, exact in zip(gradients, torch.autograd.grad(expected, wide, weight), strict=True):
        assert relative_error(gradient, exact) < tolerance


@pytest.mark.parametrize(
    'shape', [(1, 700, 3, 32, 45, 32), (2, 61, 2, 8, 5, 4), (3, 1, 1, 4, 1, 2)]
)  # B, N, h, d, m, e
@pytest.mark.parametrize('limits', [(2**20, 2**22), (64, 2**22), (64, 0)], ids=['whole', 'kept slices', 'slices'])
@pytest.mark.parametrize('scale', [1.0, 1.5])
def test_products_with_the_kernel_are_the_definition(shape, limits, scale, monkeypatch):
    monkeypatch.setattr(products, 'CPU_SLICE', limits[0])
    monkeypatch.setattr(products, 'CPU_KEPT', limits[1])
    batch, count, heads, width, landmarks, values = shape
    inputs = [
        torch.randn(batch, count, heads, width).mul_(0.3),
        torch.randn(batch, heads, landmarks, width).mul_(0.3),
        torch.randn(batch, heads, landmarks, values),
    ]
    v = torch.randn(batch, count, heads, values)
    kernels = products.kernel_slices(*inputs[:2], scale)
    assert (kernels is None) == (limits[1] == 0)
    for tensors, product, reference in (
        (inputs, lambda *x: kernel_product(*x, scale, None, kernels), kernel_product_reference),
        (
            [*inputs[:2], v],
            lambda *x: kernel_transposed_product(*x, scale, kernels),
            kernel_transposed_product_reference,
        ),
    ):
        single = [x.clone().requires_grad_() for x in tensors]
        double = [x.double().requires_grad_() for x in tensors]
        agree(product(*single), reference(*double, scale), single, double, 1e-5)


def test_gelu_by_the_sigmoid_is_gelu_by_the_tanh():
    x = torch.cat((torch.linspace(-12, 12, 2001), torch.tensor([0.0, 1e-20, -1e-20, 80.0, -80.0])))
    single, double = x.clone().requires_grad_(), x.double().requires_grad_()
    agree(gelu_tanh(single), gelu_tanh_reference(double), [single], [double], 2e-6)
    half = x.bfloat16()
    assert relative_error(gelu_tanh(half), gelu_tanh_reference(half.double())) < 2**-8
    gradient = torch.autograd.grad(gelu_tanh(single).sum(), single, create_graph=True)[0]
    exact = torch.autograd.grad(gelu_tanh_reference(double).sum(), double, create_graph=True)[0]
    agree(gradient, exact, [single], [double], 1e-5)


@pytest.mark.parametrize('shape', [(7,), (1, 5, 7), (3, 5, 7), (2, 1, 7), (4, 3, 2, 7)], ids=str)
def test_linear_maps_are_torchs(shape):
    inputs = [torch.randn(shape), torch.randn(6, 7), torch.randn(6)]
    for bias in (True, False):
        single = [x.clone().requires_grad_() for x in inputs[: 2 + bias]]
        double = [x.double().requires_grad_() for x in inputs[: 2 + bias]]
        agree(linear(*single), torch.nn.functional.linear(*double), single, double, 1e-5)
    assert linear(torch.ones(0, 5, 7), inputs[1]).shape == (0, 5, 6)
    strided = torch.randn(5, 7, 3).transpose(1, 2)
    assert relative_error(linear(strided, inputs[1]), strided.double() @ inputs[1].double().t()) < 1e-5
    assert linear(inputs[0].bfloat16(), inputs[1].bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize('batch', [1, 2])
def test_linear_maps_by_head(batch):
    inputs = [torch.randn(batch, 9, 3, 4), torch.randn(batch, 3, 5, 4), torch.randn(batch, 3, 5)]
    single, double = [x.clone().requires_grad_() for x in inputs], [x.double().requires_grad_() for x in inputs]
    expected = torch.einsum('bnhd,bhkd->bnhk', *double[:2]) + double[2][:, None]
    agree(linear_by_head(*single), expected, single, double, 1e-5)


def spd(values):
    """Symmetric matrices of given eigenvalues (..., m)."""
    basis, _ = torch.linalg.qr(torch.randn(*values.shape, values.shape[-1], dtype=values.dtype))
    return basis * values.unsqueeze(-2) @ basis.transpose(-1, -2)


@pytest.mark.parametrize('backward', ['closed', 'unrolled'])
def test_newton_follows_the_eigenvalue_oracle(backward):
    values = torch.logspace(0, -9, 49, dtype=torch.float64).expand(2, 3, 49)
    a = spd(values)
    for iterations in (1, 7, 20):
        alpha = matrix_scale(a)
        expected = newton_oracle(a, alpha, iterations)
        assert relative_error(newton_inverse(a, alpha, iterations, backward), expected) < 1e-9
    # in float32 what rounding adds to a vanishing eigenvalue doubles a step: at most eps * 2^20 / |A|
    assert relative_error(newton_inverse(a.float(), alpha.float(), 20, backward), expected) < 2e-2


def test_newton_inverts_what_can_be_inverted():
    a = spd(torch.linspace(0.5, 2, 12, dtype=torch.float64).expand(3, 4, 12))
    inverse = newton_inverse(a, guarded_scale(a.abs()))
    assert relative_error(inverse, torch.linalg.inv(a)) < 1e-12
    for product, result in ((a @ inverse @ a, a), (inverse @ a @ inverse, inverse)):  # Penrose
        assert relative_error(product, result) < 1e-12
    singular = spd(torch.tensor([2.0, 1.0, 0.5, 0.0, 0.0], dtype=torch.float64)[None, None])
    inverse = newton_inverse(singular, matrix_scale(singular))
    assert relative_error(inverse, torch.linalg.pinv(singular, hermitian=True)) < 1e-8


def test_scale_is_the_loop_of_the_paper():
    for spread in (0.0, 0.05, 0.3, 1.0, 10.0):
        gram = gaussian_gram(spread * torch.randn(3, 4, 49, 32, dtype=torch.float64))
        gram[1] = gaussian_gram(30 * torch.randn(4, 49, 32, dtype=torch.float64))  # another scale beside it
        assert relative_error(guarded_scale(gram), guarded_scale_reference(gram)) < 1e-12
        alone = torch.cat([guarded_scale(image[None]) for image in gram])
        assert torch.equal(guarded_scale(gram), alone)


def test_near_identity_is_inverted():
    gram = gaussian_gram(20 * torch.randn(2, 2, 49, 32))  # distant landmarks
    assert (gram - torch.eye(49)).abs().max() < 1e-6
    assert relative_error(newton_inverse(gram, guarded_scale(gram)), gram) < 1e-5
    doubled = newton_inverse(gram, guarded_scale(gram) * 2 / 1.9)  # what the guard prevents
    assert doubled.abs().max() < 0.1


@pytest.mark.parametrize('normalize', [True, False])
@pytest.mark.parametrize('shape', SHAPES)
def test_attention_meets_the_n_by_n_reference(shape, normalize):
    q, lm, v = tensors(shape)
    found = softmax_free_attention(q, lm, v, normalize=normalize)
    assert relative_error(found, softmax_free_attention_reference(q, lm, v, normalize=normalize)) < 1e-4


@pytest.mark.parametrize('gain', [0.25, torch.tensor(0.25)])
def test_a_gain_multiplies_attention_and_its_gradients(gain):
    inputs = [x.requires_grad_() for x in tensors((2, 2, 6, 4, 3))]
    weight = torch.randn(2, 2, 6, 3)
    found, plain = (softmax_free_attention(*inputs, **options) for options in (dict(gain=gain), {}))
    assert relative_error(found, softmax_free_attention_reference(*inputs, gain=gain)) < 1e-4
    pairs = zip(*(torch.autograd.grad(y, inputs, weight) for y in (found, 0.25 * plain)), strict=True)
    assert all(relative_error(one, other) < 1e-5 for one, other in pairs)


@pytest.mark.parametrize('normalize', [True, False])
def test_gradients_of_attention(normalize):
    """Unrolled: exact everywhere. Closed: exact where Newton has converged."""

    def run(backward, iterations):
        return lambda *x: softmax_free_attention(
            *x, normalize=normalize, iterations=iterations, backward=backward
        ).square()

    well = [x.double().requires_grad_() for x in tensors((2, 2, 6, 4, 3), scale=2.0)]
    assert torch.autograd.gradcheck(run('unrolled', 3), well)  # far from converged
    assert torch.autograd.gradcheck(run('unrolled', 20), well)
    assert torch.autograd.gradcheck(run('closed', 40), well)
    close = [x.double().requires_grad_() for x in tensors((2, 2, 6, 4, 3), scale=0.1)]  # near-singular A
    assert torch.autograd.gradcheck(run('unrolled', 20), close)
    keys = torch.randn_like(well[0], requires_grad=True)  # Q and K apart
    apart = lambda q, lm, v, k: softmax_free_attention(q, lm, v, normalize=normalize, iterations=3, k=k)  # noqa: E731
    assert torch.autograd.gradcheck(apart, (*well, keys))


def test_nothing_becomes_denormal():
    """Numbers below 1e-38 slow a CPU down tenfold and more; neither values nor gradients may dwell there."""
    tiny = torch.finfo(torch.float32).tiny
    far = gaussian_kernel(40 * torch.randn(50, 32), 40 * torch.randn(20, 32))
    assert far.min() > tiny
    assert far.max() < 1e-15
    a = gaussian_gram(torch.randn(6, 49, 32)) + 0.01 * torch.eye(49)
    a.requires_grad_()
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.bmm.default:
                seen.append(sum(((x != 0) & (x.abs() < tiny)).float().mean().item() for x in args))
            return result

    inverse = newton_inverse(a, matrix_scale(a), backward='unrolled')
    with Watch():
        inverse.backward(torch.randn_like(inverse))
    assert len(seen) >= 40
    assert max(seen) < 1e-3


@pytest.mark.parametrize('backward', ['closed', 'unrolled'])
@pytest.mark.parametrize('normalize', [True, False])
def test_rank_deficient_input_stays_finite(normalize, backward):
    q, lm, v = tensors((2, 2, 40, 49, 32))
    cases = {
        'identical landmarks': (q, lm[:, :, :1].expand_as(lm), v),
        'constant image': (q[:, :, :1].expand_as(q), q[:, :, :1].expand(2, 2, 49, 32), v),
        'zeros': (torch.zeros_like(q), torch.zeros_like(lm), v),
        'nearly identical': (q, lm[:, :, :1] + 1e-4 * lm, v),
    }
    for name, case in cases.items():
        inputs = [x.clone().requires_grad_() for x in case]
        found = softmax_free_attention(*inputs, normalize=normalize, backward=backward)
        found.square().mean().backward()
        assert found.isfinite().all(), name
        assert all(x.grad.isfinite().all() for x in inputs), name
        if name != 'nearly identical':
            reference = softmax_free_attention_reference(*case, normalize=normalize)
            assert relative_error(found, reference) < 5e-3, name


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('normalize', [True, False])
def test_half_precision_is_finite_and_near(dtype, normalize):
    for scale in (1e-3, 0.1, 1.0, 10.0, 1e3):
        inputs = [x.requires_grad_() for x in tensors((2, 3, 70, 49, 32), dtype, scale)]
        found = softmax_free_attention(*inputs, normalize=normalize)
        assert found.dtype == dtype
        found.float().mean().backward()
        assert found.isfinite().all(), scale
        assert all(x.grad.isfinite().all() for x in inputs), scale
        # the arithmetic is float32: half costs only the rounding of the result
        single = softmax_free_attention(*(x.detach().float() for x in inputs), normalize=normalize)
        assert relative_error(found, single) < torch.finfo(dtype).eps, scale
    huge = softmax_free_attention(q := torch.zeros(1, 1, 3000, 4, dtype=dtype), q[:, :, :2], q + 1e3, normalize=False)
    assert huge.isfinite().all()  # a sum of 3000 values of 1000 saturates in float16


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_autocast_does_not_reach_the_arithmetic(dtype):
    q, lm, v = tensors((2, 2, 50, 20, 16))
    expected = softmax_free_attention(q, lm, v)
    with torch.autocast('cpu', dtype=dtype):
        assert torch.matmul(q, q.transpose(-1, -2)).dtype == dtype
        assert torch.equal(softmax_free_attention(q, lm, v), expected)


@pytest.mark.parametrize('normalize', [True, False])
def test_an_image_does_not_see_its_batch(normalize):
    images = [tensors((1, 3, 60, 49, 32), scale=scale) for scale in (1.0, 1e-3, 1e3, 30.0, 0.1)]
    q, lm, v = (torch.cat(parts) for parts in zip(*images, strict=True))
    together = softmax_free_attention(q, lm, v, normalize=normalize)
    for i in range(5):
        alone = softmax_free_attention(q[i : i + 1], lm[i : i + 1], v[i : i + 1], normalize=normalize)
        assert relative_error(together[i : i + 1], alone) < 1e-5, i


def test_scattered_indices_are_distinct_and_seeded():
    for count in (10, 49, 3136, 67200):
        picks = min(count, 49)
        found = scattered_indices(count, picks, 0, torch.device('cpu'))
        assert found.unique().numel() == picks
        assert found.min() >= 0
        assert found.max() < count
        assert torch.equal(found, scattered_indices(count, picks, 0, torch.device('cpu')))
        if count > picks:
            assert set(found.tolist()) != set(scattered_indices(count, picks, 1, torch.device('cpu')).tolist())
    quarter = (scattered_indices(67200, 4000, 3, torch.device('cpu')) < 16800).float().mean()
    assert abs(quarter - 0.25) < 0.05  # spread over the whole map


def test_bad_input_is_named():
    q, lm, v = tensors((2, 3, 37, 11, 8))
    with pytest.raises(ValueError, match=r'landmarks \(B, h, m, d\).*\(2, 3, 11, 7\)'):
        softmax_free_attention(q, lm[..., :7], v)
    with pytest.raises(ValueError, match=r'v \(2, 3, 36, 8\)'):
        softmax_free_attention(q, lm, v[:, :, :36])
    with pytest.raises(ValueError, match=r'width d; got x \(2, 3, 37, 8\) torch.float32, y \(2, 3, 11, 5\)'):
        gaussian_kernel(q, lm[..., :5])
    with pytest.raises(ValueError, match=r'square.*\(3, 4\)'):
        newton_inverse(torch.zeros(3, 4), torch.ones(1, 1))
    with pytest.raises(ValueError, match=r'alpha \(\.\.\., 1, 1\).*alpha \(3,\)'):
        newton_inverse(torch.eye(3), torch.ones(3))
    with pytest.raises(ValueError, match="'close' is unknown; choose one of unrolled, closed"):
        newton_inverse(torch.eye(3), torch.ones(1, 1), backward='close')
    with pytest.raises(ValueError, match='at least 1; got 0'):
        newton_inverse(torch.eye(3), torch.ones(1, 1), 0)
    with pytest.raises(ValueError, match=r'map \(B, C, H, W\).*\(3, 5\)'):
        to_landmark_windows(torch.zeros(3, 5), (2, 2), 49)


@pytest.mark.parametrize('mean', [False, True])
def test_projections_share_the_sum_of_the_tokens_gradient(mean, monkeypatch):
    """What GPUs run, here on the CPU: values and gradients are those of the layers, frozen ones have none."""
    layers = (nn.Linear(6, 8), nn.Linear(6, 4))
    layers[1].bias.requires_grad_(False)
    x, results = torch.randn(3, 7, 6), []
    assert 'gpu declines: tensors are on the CPU' in explain(project, x, layers, nn.Linear, mean)
    on_gpu = x.to('meta')
    monkeypatch.setattr(projections, 'eager_gpu', lambda x: None)
    assert project.choice(x, layers, nn.Linear, mean) == 'gpu'
    assert 'not float32' in explain(project, on_gpu.double(), layers, nn.Linear, mean)
    for kind in ('gpu', 'portable'):
        leaf = x.clone().requires_grad_()
        with kernels(kind):
            outputs = project(leaf, layers, nn.Linear, mean)
        assert len(outputs) == 2 + mean
        leaves = [leaf, layers[0].weight, layers[0].bias, layers[1].weight]
        loss = sum((y * torch.linspace(-1, 2, y.numel()).view(y.shape)).square().sum() for y in outputs)
        results.append([*outputs, *torch.autograd.grad(loss, leaves)])
    for found, expected in zip(*results, strict=True):
        assert relative_error(found, expected) < 1e-5
    handle = layers[0].register_forward_hook(lambda *_: None)
    assert 'hooks hang on a layer' in explain(project, x, layers, nn.Linear, mean)
    handle.remove()
