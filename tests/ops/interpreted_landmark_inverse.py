"""The landmark inverse in Triton's interpreter against float64; test_triton_interpreted.py runs it."""

import pytest
import torch
from helpers import relative_error

from mmsoft.ops.attention import RIDGE
from mmsoft.ops.gaussian import gaussian_kernel_reference
from mmsoft.ops.newton import guarded_scale_reference, matrix_scale
from mmsoft.ops.triton import landmark_inverse as landmark_inverse_module
from mmsoft.ops.triton.landmark_inverse import landmark_inverse

OPTIONS = [(normalize, backward) for normalize in (True, False) for backward in ('unrolled', 'closed')]
IDS = ['soft++ unrolled', 'soft++ closed', 'soft unrolled', 'soft closed']


def reference(landmarks, normalize, iterations=20, backward='unrolled'):
    """The definition, in float64: one autograd graph, or Y - Y (A - A) Y, whose gradient is the closed one."""
    landmarks = landmarks.double()
    a = gaussian_kernel_reference(landmarks, landmarks)
    root = a.sum(-1).rsqrt()
    alpha = guarded_scale_reference(a) if normalize else matrix_scale(a)
    if not normalize:
        a = a + RIDGE * torch.eye(a.shape[-1], dtype=a.dtype)
    x = alpha * a
    for _ in range(iterations):
        x = 2 * x - x @ a @ x
    if backward == 'closed':
        x = x.detach() - x.detach() @ (a - a.detach()) @ x.detach()
    return root.unsqueeze(-1) * x * root.unsqueeze(-2) if normalize else x


def check(landmarks, tolerance, normalize, iterations=20, backward='unrolled'):
    inputs, wide = landmarks.detach().requires_grad_(), landmarks.detach().double().requires_grad_()
    found = landmark_inverse(inputs, normalize, iterations, backward)
    expected = reference(wide, normalize, iterations, backward)
    assert relative_error(found, expected) < tolerance
    weight = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(found, inputs, weight.float())
    (exact,) = torch.autograd.grad(expected, wide, weight)
    assert gradient.dtype == landmarks.dtype
    rounding = torch.finfo(landmarks.dtype).eps
    if exact.abs().max() > 1e-9:
        assert relative_error(gradient, exact) < max(tolerance, rounding)
    else:
        assert gradient.abs().max() < 1e-3


@pytest.mark.parametrize(('normalize', 'backward'), OPTIONS, ids=IDS)
@pytest.mark.parametrize('m', [1, 49, 64])
def test_values_and_gradients(m, normalize, backward):
    check(torch.randn(1, 2, m, 32), 2e-5, normalize, backward=backward)


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
@pytest.mark.parametrize('d', [16, 24, 64])
def test_widths_and_half_precision(d, dtype):
    for normalize in (True, False):
        check(torch.randn(1, 2, 5, d).to(dtype), 2e-5, normalize, iterations=3)


def test_far_from_converged_the_scale_takes_part():
    """After two steps much of the gradient goes through alpha, in SOFT++ through that of another head."""
    landmarks = torch.stack((torch.randn(9, 8), 0.3 * torch.randn(9, 8), 5 * torch.randn(9, 8)))[None]
    for normalize, backward in OPTIONS:
        check(landmarks, 2e-5, normalize, iterations=2, backward=backward)


@pytest.mark.parametrize('normalize', [True, False])
def test_images_of_all_scales_do_not_see_each_other(normalize):
    images = [scale * torch.randn(1, 2, 9, 8) for scale in (1.0, 30.0, 1e3, 0.5)]
    together = torch.cat(images).requires_grad_()
    found = landmark_inverse(together, normalize)
    (gradient,) = torch.autograd.grad(found.square().sum(), together)
    assert relative_error(found, reference(together.detach(), normalize)) < 1e-4
    for i, image in enumerate(images):
        image = image.detach().requires_grad_()
        alone = landmark_inverse(image, normalize)
        assert torch.equal(found[i : i + 1], alone)
        assert torch.equal(gradient[i : i + 1], torch.autograd.grad(alone.square().sum(), image)[0])


def test_halvings_are_those_of_the_paper():
    """Nearly equal landmarks halve the scale, distant ones take 0.95 of it."""
    for spread in (0.0, 0.01, 0.1, 0.3, 20.0):
        landmarks = spread * torch.randn(2, 2, 20, 4)
        assert relative_error(landmark_inverse(landmarks, iterations=1), reference(landmarks, True, 1)) < 1e-5


@pytest.mark.parametrize(('normalize', 'backward'), OPTIONS, ids=IDS)
def test_identical_landmarks_are_finite(normalize, backward):
    landmarks = torch.randn(1, 2, 1, 8).expand(1, 2, 11, 8).clone().requires_grad_()
    found = landmark_inverse(landmarks, normalize, backward=backward)
    assert relative_error(found, reference(landmarks.detach(), normalize)) < 5e-3
    (gradient,) = torch.autograd.grad(found, landmarks, torch.randn_like(found))
    assert gradient.isfinite().all()


@pytest.mark.parametrize(('normalize', 'backward'), OPTIONS, ids=IDS)
def test_a_gradient_in_registers_as_on_amd(normalize, backward, monkeypatch):
    monkeypatch.setattr(landmark_inverse_module, 'REGISTERS', not landmark_inverse_module.REGISTERS)
    check(torch.randn(2, 3, 19, 16), 2e-5, normalize, backward=backward)


def test_strides_and_runs():
    """Tokens before heads, as a transposed view; the same bits from run to run."""
    landmarks = torch.randn(2, 7, 3, 8).transpose(1, 2)
    assert not landmarks.is_contiguous()
    check(landmarks, 2e-5, True)
    assert torch.equal(landmark_inverse(landmarks), landmark_inverse(landmarks.contiguous()))
    assert torch.equal(landmark_inverse(landmarks), landmark_inverse(landmarks))
