"""How the Triton kernels are reached: when they run, what graphs and counters see; nothing imports them early."""

import contextlib
from types import SimpleNamespace

import torch
from fresh_python import python
from helpers import MINI, needs_triton
from launches import Launches
from torch import nn
from torchvision.ops import StochasticDepth

from mmsoft.models import MILA, RAVLT, SOFT, InLineSwin
from mmsoft.ops import (
    add_head_convolution,
    add_norm,
    dispatch,
    inline_attention,
    inline_with_convolution,
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


def test_a_blocks_last_sum_and_the_next_ones_norm_are_one_launch_unless_a_hook_sees_the_block():
    """Blocks of InLine-Swin have 2 2 6 2 layers: one add_norm inside of each, one between two of a stage."""
    model = InLineSwin('tiny').to('meta').eval()
    seen = []

    def sums():
        with Launches() as launched, torch.no_grad():
            model(torch.empty(1, 3, 224, 224, device='meta'))
        return launched.names.count('add_norm')

    assert sums() == 12 + 8
    handle = model.stages[2].blocks[3].register_forward_hook(lambda block, inputs, y: seen.append(y.shape))
    assert sums() == 12 + 3
    assert seen == [(1, 14 * 14, 384)]
    handle.remove()
    model.stages[2].blocks[3].forward = model.stages[2].blocks[3].forward.__func__.__get__(model.stages[2].blocks[3])
    assert sums() == 12 + 8
    model.stages[2].blocks[3].forward = lambda x, grid: x  # in place of a block
    assert sums() == 11 + 3
    assert all(block._compiled_call_impl is None for block in model.stages[1].blocks)
    model.stages[1].blocks[0].compile(backend='eager')
    assert sums() == 11 + 3 - 1


def test_queries_and_keys_of_mila_and_ravlt_are_a_launch_each_and_one_more_in_training():
    layers = 1 + 1 + 2 + 1
    assert launches(MILA(dict(MINI, heads=(2, 2, 3, 4))), False) == ['rotary_features'] * 2 * layers
    made = ['rotary_features'] * 2 * 2 + ['rotary_turn'] * 2 * 3  # two layers of RALA, three of softmax
    model = RAVLT(MINI)
    assert launches(model, False) == made
    assert sorted(launches(model, True)) == sorted(made + ['rotary_gradient'] * 2 * layers)


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
    x, kernels_of_x = (torch.empty(*s, device='meta', requires_grad=True) for s in ((2, 30, 32), (2, 32, 3, 3)))

    def local(x, k):
        return inline_with_convolution(x, torch.cat((x, x), -1), k, (5, 6), 2)

    torch.compile(local, backend='aot_eager', fullgraph=True)(x, kernels_of_x).sum().backward()
    assert kernels_of_x.grad is not None
    weights = torch.empty(2, 1, 5, 5, device='meta', requires_grad=True)
    norm, layer = nn.LayerNorm(32, device='meta'), nn.Linear(32, 32, device='meta')

    def block(x):
        s, normed = add_norm(x, add_head_convolution(x, x, weights, (5, 6)), norm, StochasticDepth(0.5, 'row'))
        return s + linear_gelu(normed, layer, nn.Linear, 'tanh')

    torch.compile(block, backend='aot_eager', fullgraph=True)(x).sum().backward()
    assert all(leaf.grad is not None for leaf in (x, weights, *norm.parameters(), *layer.parameters()))


def test_kernels_start_on_the_gpu_of_their_tensors(monkeypatch):
    """Triton starts them on the current one, which a model that was sent to cuda:1 need not be on."""
    from mmsoft.ops.triton import launch
    from mmsoft.ops.triton.residual import _channel_total_kernel as kernel

    on, started = [0], []

    @contextlib.contextmanager
    def device(chosen):
        on.append(chosen.index)
        yield
        on.pop()

    class Wrapped:
        def __getitem__(self, grid):
            return lambda *args, **options: started.append((on[-1], grid, args, options))

    monkeypatch.setattr(torch.cuda, 'current_device', lambda: on[-1])
    monkeypatch.setattr(torch.cuda, 'device', device)
    monkeypatch.setattr(torch.library, 'wrap_triton', lambda kernel: Wrapped())
    monkeypatch.setattr(launch, 'not_plain', lambda tensor: None)
    for index in (0, 1):
        tensor = SimpleNamespace(is_meta=False, is_cuda=True, device=torch.device('cuda', index))
        launch.wrap_triton(kernel, tensor)[(2,)]('x', num_warps=4)
    assert started == [(index, (2,), ('x',), dict(num_warps=4)) for index in (0, 1)]
    assert on == [0]


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
from mmsoft.ops.triton.inline import inline_attention, inline_with_convolution
from mmsoft.ops.triton.kernel_products import nystrom_product
from mmsoft.ops.triton.landmark_inverse import landmark_inverse
from mmsoft.ops.triton.rotary import features
class Driver:
    get_current_target = lambda self: GPUTarget('cuda', 80, 32)
    get_current_device = lambda self: 0
triton.runtime.driver.set_active(Driver())
with FakeTensorMode():
    q, landmarks, x, kernels = (torch.empty(*shape, device='cuda:0') for shape in (
        (1, 30, 2, 16), (1, 2, 9, 16), (1, 4, 5, 6), (1, 4, 3, 3)))
    joint = tuple(torch.empty(*shape, device='cuda:0') for shape in ((1, 30, 32), (1, 30, 64), (1, 32, 3, 3)))
    for launches, function, inputs in (
        (5, lambda q, lm: (nystrom_product(q, lm, q, landmark_inverse(lm)),), (q, landmarks)),
        (3, lambda q: (inline_attention(q, q, q, 'exp'),), (q,)),
        (4, lambda q, kv, k: (inline_with_convolution(q, kv, k, (6, 5), 2),), joint),
        (1, lambda q: features(q.transpose(1, 2), q[0, :5, 0, :4], q[0, :6, 0, :4]), (q,)),
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


def test_shapes_that_a_kernel_would_read_beyond_are_declined():
    x, norm = torch.empty(2, 6, 8, device='meta'), nn.LayerNorm(8)
    assert 'add_norm: triton runs' in explain(add_norm, x, x, norm, nn.Identity())
    for y, other in ((x[:1], norm), (x[:, :1], norm), (x, nn.LayerNorm((6, 8)))):
        assert 'sides differ in shape' in explain(add_norm, x, y, other, nn.Identity())
    for sides in ((4, 3), (3, 34)):
        assert 'no centre' in explain(add_head_convolution, x, x, torch.empty(2, 1, *sides, device='meta'), (2, 3))


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
