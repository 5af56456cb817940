"""Which implementation of an operator runs, why, how one is forced; and that every one of them meets the reference."""

import contextlib

import pytest
import torch
from fresh_python import python
from helpers import relative_error

from mmsoft.ops import dispatch, gelu_tanh, linear
from mmsoft.ops.dispatch import OPERATORS, Operator, explain, kernels

COMPARED = {name: op for name, op in OPERATORS.items() if op.reference and op.example}
CASES = [(name, i) for name, op in COMPARED.items() for i in range(len(op.implementations))]


def arguments(op, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return op.example(lambda *shape: torch.randn(*shape, generator=generator, dtype=dtype))


def double(x):
    return x.detach().double().requires_grad_() if isinstance(x, torch.Tensor) else x


@pytest.mark.parametrize(('name', 'number'), CASES, ids=lambda value: str(value))
def test_every_implementation_is_the_reference(name, number):
    """Values and gradients, of whatever an implementation does not decline; the portable one declines nothing."""
    op = COMPARED[name]
    kind, run, against = op.implementations[number]
    inputs = arguments(op)
    leaves = [x.requires_grad_() for x in inputs if isinstance(x, torch.Tensor)]
    reason = against(*inputs)
    if kind == 'portable':
        assert reason is None
    elif reason is not None:
        pytest.skip(f'{kind} declines: {reason}')
    wide = [double(x) for x in inputs]
    exact_leaves = [x for x in wide if isinstance(x, torch.Tensor)]
    found, expected = run(*inputs), op.reference(*wide)
    assert relative_error(found, expected) < 1e-4
    if not expected.requires_grad or name in ('newton_inverse', 'softmax_free_attention', 'guarded_scale'):
        return  # references by eigenvalues or without gradient; test_ops.py has gradcheck
    weight = torch.randn_like(expected)
    pairs = torch.autograd.grad(found, leaves, weight.float()), torch.autograd.grad(expected, exact_leaves, weight)
    for gradient, exact in zip(*pairs, strict=True):
        assert relative_error(gradient, exact) < 1e-4


def toy():
    """An operator of its own, not among the package's: x + 1 by two implementations."""
    ran = []

    def plus(x, by=1):
        ran.append('portable')
        return x + by

    op = Operator(plus)

    @op.also('cpu', lambda x, by=1: 'tensors are not wanted' if isinstance(x, torch.Tensor) else None)
    def numbers(x, by=1):
        ran.append('cpu')
        return x + by

    @op.also('triton', lambda x, by=1: None if x == 0 else 'x is not 0')
    def special(x, by=1):
        ran.append('triton')
        return by

    return op, ran


def test_the_most_special_is_asked_first_and_the_portable_last(monkeypatch):
    op, ran = toy()
    assert [op(0), op(3, by=2), op(torch.ones(())).item()] == [1, 5, 2]
    assert ran == ['triton', 'cpu', 'portable']
    assert explain(op, 0) == 'plus: triton runs'
    assert explain(op, 3) == 'plus: cpu runs; triton declines: x is not 0'
    assert explain(op, torch.ones(())) == (
        'plus: portable runs; triton declines: x is not 0; cpu declines: tensors are not wanted'
    )


def test_kernels_are_forced_within_a_region(monkeypatch):
    op, ran = toy()
    monkeypatch.setitem(OPERATORS, 'plus', op)
    with kernels('cpu'):
        with kernels('portable'):
            assert op(0) == 1
        assert op(0) == 1
        with pytest.raises(RuntimeError, match=r"forces 'cpu', which cannot serve .* plus: cpu declines: tensors are"):
            op(torch.ones(()))
        assert explain(op, torch.ones(())) == 'plus: nothing runs; cpu declines: tensors are not wanted'
    with kernels('triton'), contextlib.suppress(ZeroDivisionError):
        assert op(0) / 0
    assert dispatch._forced is None
    assert ran == ['portable', 'cpu', 'triton']
    with kernels('no-triton'):
        assert op(0) == 1
        with kernels('triton'):
            assert op(0) == 1
        assert explain(op, 0) == 'plus: cpu runs'
    assert ran[3:] == ['cpu', 'triton']
    for unknown in ('tritn', 'no-tritn', 'no-portable', 'no-'):
        with pytest.raises(ValueError, match=rf"kernels\(\): '{unknown}' is unknown; choose one of portable, .*triton"):
            kernels(unknown).__enter__()


def test_an_operator_without_the_forced_kind_runs_its_portable_version():
    with kernels('gpu'):
        assert linear.choice(torch.ones(2, 3), torch.ones(4, 3)) == 'portable'


@pytest.mark.slow
def test_the_environment_forces_kernels(monkeypatch):
    run = python(
        'import os; os.environ["MMSOFT_KERNELS"] = "own"\n'
        'import torch; from mmsoft.ops import linear, gelu_tanh\n'
        'try: linear.candidates()\nexcept ValueError as error: print(error)\n'
        '@linear.also("own", lambda *x: None)\ndef own(*x): return "own"\n'
        'print(linear(), gelu_tanh.candidates()[0].kind)'
    )
    first, *rest = run.stdout.splitlines()
    assert first.startswith("MMSOFT_KERNELS or kernels(): 'own' is unknown; choose one of portable, "), run.stderr
    assert rest == ['own portable']
    monkeypatch.setattr(dispatch, '_forced', None)  # what an empty variable makes
    assert len(linear.candidates()) > 1


def test_reasons_tell_dtype_device_and_graph():
    x, w = torch.randn(4, 3), torch.randn(5, 3)
    assert 'cpu declines: oneDNN has no float64' in explain(linear, x.double(), w.double())
    assert 'cpu declines: tensors are not on the CPU' in explain(linear, x.to('meta'), w.to('meta'))
    assert 'there are no tokens' in explain(linear, x[:0], w)
    assert 'a tensor is of a class of its own' in explain(linear, x, w.as_subclass(Other))
    seen = []

    class Asking(torch.nn.Linear):
        def forward(self, x):
            seen.append(explain(linear, x, self.weight))
            return linear(x, self.weight)

    torch.jit.trace(Asking(3, 5), x, check_trace=False)
    torch.fx.symbolic_trace(Asking(3, 5))
    torch.export.export(Asking(3, 5), (x,), strict=False)
    assert len(seen) >= 3
    assert all('cpu declines: a graph is being made' in text for text in seen)


def test_a_module_is_watched_whoever_hangs_a_hook_on_which_part():
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    assert not dispatch.is_watched(module)
    for register in (
        module[0].register_forward_hook,
        module[1].register_forward_pre_hook,
        module.register_full_backward_hook,
        torch.nn.modules.module.register_module_forward_hook,
    ):
        handle = register(lambda *args: None)
        assert dispatch.is_watched(module), register
        handle.remove()
        assert not dispatch.is_watched(module)


class Other(torch.Tensor):
    pass


def test_compiled_functions_have_no_break_and_follow_what_is_forced():
    def run(x, w):
        return gelu_tanh(linear(x, w))

    compiled = torch.compile(run, fullgraph=True, backend='eager')
    x, w = torch.randn(4, 3), torch.randn(5, 3)
    assert relative_error(compiled(x, w), run(x, w)) < 1e-6
    with kernels('portable'):
        assert torch.equal(compiled(x, w), run(x, w))
    # torch 2.6 tells only where the error is
    with kernels('cpu'), pytest.raises(Exception, match=r'a graph is being made|gelu_tanh\(linear'):
        compiled(x, w)
