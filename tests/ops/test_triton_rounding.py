"""Which rounding of tensor cores Newton's iteration bears: TF32 and 3 x TF32, simulated.

Tensor cores round float32 factors to 10 bits of mantissa (TF32) and add in float32. 3 x TF32 splits each factor into
such a number and the rest, rounded alike, and adds three of the four products. The kernels take the latter.
"""

import functools

import pytest
import torch
import torch.nn.functional as F
from helpers import MINI, relative_error
from torch import nn

from mmsoft.layers import soft_attention
from mmsoft.models import SOFT
from mmsoft.ops import gaussian_gram, guarded_scale, matrix_scale, newton_oracle, softmax_free_attention
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


def waves(directions, side):
    """Pictures (B, 3, side, side) of waves in one of four directions, and noise."""
    angle = directions.view(-1, 1, 1) * torch.pi / 4 + 0.2 * torch.randn(len(directions), 1, 1)
    place, phase = torch.arange(side) / 3, 6 * torch.rand(len(directions), 1, 1)
    picture = torch.sin(angle.cos() * place + angle.sin() * place[:, None] + phase)
    return picture.unsqueeze(1) + 0.3 * torch.randn(len(directions), 3, side, side)


@functools.cache
def trained_landmarks(normalize):
    """Of all layers of a small network that has learned to tell directions of waves: 49 each, as at 224 x 224."""
    torch.manual_seed(0)
    model, head = SOFT(MINI, attn='soft_pp' if normalize else 'soft').train(), nn.Linear(MINI['dims'][-1], 4)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], 2e-3)
    losses, seen = [], []
    for _ in range(24):
        directions = torch.arange(16) % 4
        loss = F.cross_entropy(head(model(waves(directions, 64))[-1].mean((2, 3))), directions)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-4:]) < sum(losses[:4]) / 2

    def attention(q, landmarks, *args, **options):
        seen.append(landmarks)
        return softmax_free_attention(q, landmarks, *args, **options)

    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(soft_attention, 'softmax_free_attention', attention)
        model.eval()(waves(torch.arange(2), 224))
    assert len(seen) == 4
    return {f'trained, layer {i}': landmarks.float() for i, landmarks in enumerate(seen)}


def landmark_sets(normalize):
    """From nearly singular to nearly the identity; of rank 3, as landmarks of a smooth map are; of trained layers."""
    sets = {f'spread {spread}': spread * torch.randn(2, 4, 49, 32) for spread in (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)}
    sets['rank 3'] = 0.3 * torch.randn(2, 4, 49, 3) @ torch.randn(2, 4, 3, 32)
    return sets | trained_landmarks(normalize)


def test_rounding_is_the_instructions():
    assert tf32(torch.tensor([1 + 2**-11])).item() == 1 + 2**-10
    assert tf32(torch.tensor([1 + 2**-11 - 2**-20])).item() == 1
    assert tf32(torch.tensor([-1 - 2**-11])).item() == -1 - 2**-10


@pytest.mark.parametrize('normalize', [True, False], ids=['soft++', 'soft'])
def test_three_products_are_as_good_as_float32(normalize):
    for name, landmarks in landmark_sets(normalize).items():
        _, three, single = inverse_errors(landmarks, normalize)
        assert three < 1e-4, name
        assert three < max(2 * single, 1e-6), name


@pytest.mark.parametrize('normalize', [True, False], ids=['soft++', 'soft'])
def test_one_product_is_not_enough(normalize):
    errors = {name: inverse_errors(landmarks, normalize)[0] for name, landmarks in landmark_sets(normalize).items()}
    assert max(errors.values()) > (8e-4 if normalize else 1e-2)
    assert max(error for name, error in errors.items() if 'trained' in name) > (2e-4 if normalize else 2e-3)
    assert min(error for name, error in errors.items() if 'trained' not in name) > 1e-4
