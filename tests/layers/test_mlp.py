"""The MLP of a layer: what backward keeps of its hidden map, and graphs of it."""

import pytest
import torch
from helpers import relative_error
from torch import nn

from mmsoft.layers import Mlp


@pytest.mark.parametrize('slice_size', [2**21, 1000])
@pytest.mark.parametrize(
    ('recompute', 'device', 'kept'),
    [(None, 'cpu', False), (None, 'meta', True), (True, 'cpu', False), (True, 'meta', False), (False, 'cpu', True)],
)
def test_backward_keeps_the_hidden_map_as_the_option_says(recompute, device, kept, slice_size, monkeypatch):
    monkeypatch.setattr('mmsoft.ops.slices.HIDDEN_SLICE', slice_size)
    mlp, sizes, gradients = Mlp(16, 64, recompute=recompute).to(device), [], []
    x = torch.randn(2, 30, 16, device=device)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.shape) or t, lambda t: t):
        y = mlp(x)
    assert any(shape[-1] == 64 and len(shape) > 1 and shape[0] != 16 for shape in sizes) == kept
    y.square().sum().backward()
    gradients = [p.grad for p in mlp.parameters()]
    mlp.zero_grad()
    (mlp.fc2(nn.functional.gelu(mlp.fc1(x)))).square().sum().backward()
    if device == 'cpu':
        assert all(relative_error(g, p.grad) < 1e-5 for g, p in zip(gradients, mlp.parameters(), strict=True))


def test_a_compiled_mlp_recomputes_without_a_break():
    mlp, x = Mlp(16, 64, recompute=True), torch.randn(2, 30, 16, requires_grad=True)
    gradients = [
        torch.autograd.grad(run(x).square().sum(), [x, *mlp.parameters()])
        for run in (mlp, torch.compile(mlp, fullgraph=True, backend='aot_eager'))
    ]
    assert all(relative_error(a, b) < 1e-5 for a, b in zip(*gradients, strict=True))
    assert relative_error(torch.export.export(mlp, (x,)).module()(x), mlp(x)) < 1e-6
    traced = torch.jit.trace(mlp, x.detach())
    assert relative_error(traced(x), mlp(x)) < 1e-6


def test_a_wrong_choice_is_named():
    with pytest.raises(ValueError, match="recompute 'yes' is unknown; choose one of None, True, False"):
        Mlp(16, 64, recompute='yes')
