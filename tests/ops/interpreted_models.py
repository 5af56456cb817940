"""Whole tiny networks in Triton's interpreter: the kernels run, and give what the portable road gives."""

import pytest
import torch
from helpers import MINI, relative_error
from launches import Launches

from mmsoft.models import SOFT, InLineCSwin, InLineSwin
from mmsoft.ops import kernels, softmax_free_attention
from mmsoft.ops.dispatch import explain


def run(model, image, kind):
    """Maps and gradients by this kind of kernels, and the names of the operators that ran."""
    model.zero_grad()
    torch.manual_seed(0)
    with kernels(kind), Launches() as seen:
        maps = model(image)
        sum((y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum() for y in maps).backward()
    return maps, [p.grad.clone() for p in model.parameters() if p.grad is not None], seen.names


@pytest.mark.parametrize('attention', ['soft', 'soft_pp'])
def test_a_network_is_the_portable_one(attention):
    model = SOFT(MINI, attn=attention)
    model.train()
    image = torch.randn(1, 3, 72, 88)
    maps, gradients, names = run(model, image, 'triton')
    expected, exact, none = run(model, image, 'portable')
    assert none == []
    assert names.count('landmark_newton') == 2 * 4  # a layer of attention, again in its backward
    for found, one in zip(maps, expected, strict=True):
        assert relative_error(found, one) < 2e-5
    largest = max(one.abs().max() for one in exact)
    for found, one in zip(gradients, exact, strict=True):  # biases before a normalisation have rounding alone
        assert (found - one).abs().max() < 2e-4 * max(one.abs().max(), 1e-2 * largest)


@pytest.mark.parametrize(
    ('family', 'arch'),
    [
        (InLineSwin, dict(dims=(16, 32, 64, 128), heads=(1, 2, 2, 4), depths=(1, 2, 1, 1))),
        (InLineCSwin, dict(dims=(16, 16, 32, 32), heads=(1, 2, 2, 4), depths=(1, 2, 1, 1))),
    ],
)
def test_a_network_of_inline_is_the_portable_one(family, arch):
    """Blocks that follow each other share an operator there, with windows of softmax between them and without."""
    model = family(arch, drop_path_rate=0.3).train()
    image = torch.randn(1, 3, 32, 40)
    maps, gradients, names = run(model, image, 'triton')
    expected, exact, none = run(model, image, 'portable')
    assert none == []
    assert names.count('add_norm') == 5 + 1
    for found, one in zip(maps, expected, strict=True):
        assert relative_error(found, one) < 2e-5
    largest = max(one.abs().max() for one in exact)
    for found, one in zip(gradients, exact, strict=True):
        assert (found - one).abs().max() < 2e-4 * max(one.abs().max(), 1e-2 * largest)


def test_reasons():
    q, landmarks = torch.randn(1, 2, 30, 16), torch.randn(1, 2, 65, 16)
    assert 'triton runs' in explain(softmax_free_attention, q, landmarks[:, :, :64], q)
    assert 'more than 64 landmarks' in explain(softmax_free_attention, q, landmarks, q)
    assert 'neither float32' in explain(softmax_free_attention, q.double(), landmarks[:, :, :64].double(), q.double())
    wide = torch.randn(1, 2, 30, 33)
    assert 'wider than 32' in explain(softmax_free_attention, wide, wide, wide)
