"""How the Triton kernels are reached: when they run, what graphs and counters see; nothing imports them early."""

import torch
from fresh_python import python
from helpers import MINI, needs_triton
from launches import Launches
from torch import nn
from torchvision.ops import StochasticDepth

from mmsoft.models import SOFT, InLineSwin
from mmsoft.ops import (
    add_head_convolution,
    add_norm,
    dispatch,
    inline_attention,
    linear_gelu,
    softmax_free_attention,
)
from mmsoft.ops.dispatch import explain, kernels, no_triton

needs_triton()


def launches(model, train):
    """What the attentions ask for one image on the meta device, which stands for a GPU; forward and backward."""
    model = model.to('meta').train(train)
    with Launches() as seen, torch.set_grad_enabled(train):
        maps = model(torch.empty(1, 3, 224, 224, device='meta'))
        if train:
            sum(y.sum() for y in maps).backward()
    others = (
        ['add_norm_gradient', 'channel_total'],
        ['add_norm'],
        ['gelu_gradient', 'channel_total'],
        ['linear_gelu'],
    )  # around the attentions
    names = ' '.join(seen.names)
    for some in others:
        names = names.replace(' '.join(some), '')
    return names.split()


def test_a_layer_of_soft_is_six_launches_and_twelve_more_in_training():
    layers = 1 + 1 + 2  # of MINI; the fourth stage has softmax
    forward = ['landmark_stats', 'landmark_newton', 'kernel_sums', 'kernel_apply', 'kernel_output', 'depthwise_add']
    assert launches(SOFT(MINI), False) == forward * layers
    assert len(launches(SOFT(MINI), True)) == (6 + 12) * layers
    assert len(launches(SOFT(MINI, newton_backward='closed'), True)) == (6 + 11) * layers


def test_a_layer_of_inline_is_four_launches_and_six_more_in_training():
    model = InLineSwin('tiny')
    layers = 2 + 2 + 6
    assert launches(model, False) == ['inline_summary', 'inline_combine', 'inline_output', 'depthwise_add'] * layers
    assert len(launches(model, True)) == (4 + 6) * layers


def test_examples_show_the_kernels():
    """Whoever asks what runs where, as python -m mmsoft.env does, asks by them."""
    shown = [
        op for op in dispatch.OPERATORS.values() if op.example and any(i.kind == 'triton' for i in op.implementations)
    ]
    assert set(dispatch.overview('meta')['triton']) == {op.name for op in shown}


def test_others_may_be_left_alone():
    with kernels('no-triton'):
        assert launches(SOFT(MINI), False) == []


def test_a_compiled_graph_is_whole_and_holds_the_kernels():
    graphs = []

    def backend(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    q, landmarks = torch.empty(1, 2, 30, 16, device='meta'), torch.empty(1, 2, 9, 16, device='meta')
    compiled = torch.compile(lambda *x: softmax_free_attention(*x), backend=backend, fullgraph=True)
    assert compiled(q, landmarks, q).shape == q.shape
    assert len(graphs) == 1
    assert any('landmark_newton' in target for target in graphs[0])
    q.requires_grad_()
    torch.compile(lambda *x: inline_attention(*x), backend='aot_eager', fullgraph=True)(q, q, q).sum().backward()
    assert q.grad.shape == q.shape
    x = torch.empty(2, 30, 32, device='meta', requires_grad=True)
    weights = torch.empty(2, 1, 5, 5, device='meta', requires_grad=True)
    norm, layer = nn.LayerNorm(32, device='meta'), nn.Linear(32, 32, device='meta')

    def block(x):
        s, normed = add_norm(x, add_head_convolution(x, x, weights, (5, 6)), norm, StochasticDepth(0.5, 'row'))
        return s + linear_gelu(normed, layer, nn.Linear, 'tanh')

    torch.compile(block, backend='aot_eager', fullgraph=True)(x).sum().backward()
    assert all(leaf.grad is not None for leaf in (x, weights, *norm.parameters(), *layer.parameters()))


def test_graphs_for_a_gpu_hold_each_launch_and_nothing_is_written_twice():
    """torch's compiler takes operators apart into launches, and finds what each of them writes: its results alone."""
    code = """
import torch, triton
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from mmsoft.ops.triton.depthwise import dynamic_depthwise
from mmsoft.ops.triton.linear_gelu import linear_gelu
from mmsoft.ops.triton.residual import add_norm
from mmsoft.ops.triton.inline import inline_attention
from mmsoft.ops.triton.kernel_products import nystrom_product
from mmsoft.ops.triton.landmark_inverse import landmark_inverse
class Driver:
    get_current_target = lambda self: GPUTarget('cuda', 80, 32)
    get_current_device = lambda self: 0
triton.runtime.driver.set_active(Driver())
with FakeTensorMode():
    q, landmarks, x, kernels = (torch.empty(*shape, device='cuda:0') for shape in (
        (1, 30, 2, 16), (1, 2, 9, 16), (1, 4, 5, 6), (1, 4, 3, 3)))
    for launches, function, inputs in (
        (5, lambda q, lm: (nystrom_product(q, lm, q, landmark_inverse(lm)),), (q, landmarks)),
        (3, lambda q: (inline_attention(q, q, q, 'exp'),), (q,)),
        (1, lambda x, k: (dynamic_depthwise(x, k),), (x, kernels)),
        (1, lambda x: add_norm(x, x, x[0, 0], x[0, 0], None, 1.0, 1e-5, True, x.dtype), (x[0],)),
        (1, lambda x: linear_gelu(x, x, x[:, 0], False, True), (x[0, 0],)),
    ):
        graph = aot_export_joint_simple(function, inputs, trace_joint=False)  # refuses what writes to its inputs
        targets = [str(node.target) for node in graph.graph.nodes]
        assert sum('triton_kernel_wrapper' in target for target in targets) == launches, targets
"""
    run = python(code)
    assert run.returncode == 0, run.stderr[-3000:]


def test_exported_programs_are_portable():
    class Attention(torch.nn.Module):
        def forward(self, q, landmarks):
            return softmax_free_attention(q, landmarks, q)

    q, landmarks = torch.empty(1, 2, 30, 16, device='meta'), torch.empty(1, 2, 9, 16, device='meta')
    program = torch.export.export(Attention(), (q, landmarks))
    targets = [str(node.target) for node in program.graph.nodes]
    assert any('matmul' in target for target in targets)
    assert not any('mmsoft' in target for target in targets)


def test_reasons(monkeypatch):
    q = torch.empty(1, 2, 30, 16)
    assert 'tensors are on the CPU' in explain(softmax_free_attention, q, q, q)
    meta = q.to('meta')
    assert no_triton(meta) is None
    assert no_triton(meta, None, meta.double()) == 'a tensor is neither float32 nor float16 nor bfloat16'
    monkeypatch.setattr(dispatch, '_no_triton_for', dispatch._no_triton_for.__wrapped__)  # which asks once
    monkeypatch.setattr(dispatch, 'OLDEST_TRITON', (99, 0))
    assert 'is older than 99.0, with which the kernels are tested' in no_triton(meta)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: None)
    assert no_triton(meta) == 'Triton is not installed'


def test_nothing_imports_kernels_early():
    code = """
import sys, torch, mmsoft, mmsoft.models
from mmsoft.ops import softmax_free_attention
q = torch.randn(1, 2, 30, 16)
softmax_free_attention(q, q[:, :, :9], q)
assert not any(name.startswith('mmsoft.ops.triton') for name in sys.modules), 'imported'
"""
    run = python(code)
    assert run.returncode == 0, run.stderr
