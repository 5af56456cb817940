"""Which implementation of an operator runs, and why: no other module asks about devices, graphs or hooks.

A function decorated by :func:`operator` is an operator's portable version: right on every device, in every dtype and in
every graph. Others join it by :meth:`Operator.also`, each with ``against``, which gives the reason why it cannot serve
a call, or None. Who joins last is the most special and is asked first; the portable version is asked last.
"""

import contextlib
import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.fx import _symbolic_trace
from torch.jit._trace import is_tracing

P = ParamSpec('P')
R = TypeVar('R')
Against = Callable[..., str | None]

PORTABLE = 'portable'
BAR = 'no-'
VARIABLE = 'MMSOFT_KERNELS'
# torch 2.6 cannot tell export from compilation, and takes both for an export
IS_EXPORTING: Callable[[], bool] = getattr(torch.compiler, 'is_exporting', torch.compiler.is_compiling)
# torch 2.6 asks by an older name; what both read is a flag until torch 2.13 and a value of the thread since
IS_FX_TRACING: Callable[[], bool] = getattr(_symbolic_trace, 'is_fx_symbolic_tracing', _symbolic_trace.is_fx_tracing)
OLDEST_TRITON = (3, 7)  # torch 2.12 brings it
OPERATORS: dict[str, 'Operator[..., Any]'] = {}
KINDS = {PORTABLE: None}  # of implementations that some operator has, in order; a dict, as torch.compile knows them
# The kind that is forced, or the one that is not allowed after BAR: a plain global, which torch.compile guards. What
# the environment says is checked when it is first needed, as kinds may be registered until then.
_forced: str | None = os.environ.get(VARIABLE) or None


class Implementation(NamedTuple):
    """A way to compute an operator: what kind it is, the function, and what speaks against it in a call."""

    kind: str
    run: Callable[..., Any]
    against: Against


class Operator(Generic[P, R]):
    """Called as its portable version. ``reference``: the slow, obvious version that tests compare with.

    ``example(random)`` gives arguments for a call, of tensors that ``random(*shape)`` makes.
    """

    def __init__(
        self,
        portable: Callable[P, R],
        reference: Callable[..., Any] | None = None,
        example: Callable[..., tuple] | None = None,
    ) -> None:
        functools.update_wrapper(self, portable)
        self.name, self.reference, self.example = portable.__name__, reference, example
        self.implementations = (Implementation(PORTABLE, portable, serves_all),)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        chosen, declined = self.ask(*args, **kwargs)
        if chosen is None:
            raise RuntimeError(
                f'{VARIABLE} or kernels() forces {_forced!r}, which cannot serve this call of {self.name}: '
                f'{_told(declined)}. Allow other kernels for it.'
            )
        return chosen.run(*args, **kwargs)

    def also(self, kind: str, against: Against) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorate another implementation, which is asked before those that are there."""

        def join(run: Callable[P, R]) -> Callable[P, R]:
            self.implementations = (Implementation(kind, run, against), *self.implementations)
            KINDS[kind] = None
            return run

        return join

    def candidates(self) -> tuple[Implementation, ...]:
        """Implementations in the order in which they are asked; of a forced kind alone, if the operator has it."""
        if _forced is None:
            return self.implementations
        if _forced.startswith(BAR):
            _check_kind(_forced)
            return tuple(i for i in self.implementations if BAR + i.kind != _forced)
        forced = tuple(i for i in self.implementations if i.kind == _forced)
        if not forced:
            _check_kind(_forced)
        return forced or self.implementations[-1:]

    def ask(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Implementation | None, list[tuple[str, str]]]:
        """What would run, if anything can, and the kinds that were asked before it, each with its reason."""
        declined = []
        for implementation in self.candidates():
            reason = implementation.against(*args, **kwargs)
            if reason is None:
                return implementation, declined
            declined.append((implementation.kind, reason))
        return None, declined

    def choice(self, *args: P.args, **kwargs: P.kwargs) -> str | None:
        """The kind that would run; None if one is forced that cannot."""
        chosen, _ = self.ask(*args, **kwargs)
        return chosen and chosen.kind


def _told(declined: list[tuple[str, str]]) -> str:
    return '; '.join(f'{kind} declines: {reason}' for kind, reason in declined)


def operator(
    reference: Callable[..., Any] | None = None, example: Callable[..., tuple] | None = None
) -> Callable[[Callable[P, R]], Operator[P, R]]:
    """Decorate the portable version of an operator."""

    def make(portable: Callable[P, R]) -> Operator[P, R]:
        made = Operator(portable, reference, example)
        if made.name in OPERATORS:
            raise ValueError(f'an operator {made.name!r} is there already; name this one differently')
        OPERATORS[made.name] = made
        return made

    return make


def explain(op: Operator[P, Any], *args: P.args, **kwargs: P.kwargs) -> str:
    """Which implementation would run with these arguments, and why those that are asked before it would not."""
    chosen, declined = op.ask(*args, **kwargs)
    return '; '.join(filter(None, (f'{op.name}: {chosen.kind if chosen else "nothing"} runs', _told(declined))))


def overview(device: str) -> dict[str | None, list[str]]:
    """Kinds, each with the operators that run it on the float32 tensors of their examples, on this device."""
    found: dict[str | None, list[str]] = {}
    for op in OPERATORS.values():
        if op.example is not None:
            kind = op.choice(*op.example(lambda *shape: torch.ones(*shape, device=device)))
            found.setdefault(kind, []).append(op.name)
    return found


@contextlib.contextmanager
def kernels(kind: str | None) -> Iterator[None]:
    """Inside of a ``with``, let operators that have implementations of this kind run nothing else, others the portable.

    ``'no-<kind>'`` lets them choose among the others; None lets each choose among all. It holds for the whole process,
    and has to hold the backward pass as well; a call that the kind cannot serve is an error.
    """
    global _forced
    if kind is not None:
        _check_kind(kind)
    before, _forced = _forced, kind
    try:
        yield
    finally:
        _forced = before


def _check_kind(kind: str) -> None:
    if kind == BAR + PORTABLE or kind.removeprefix(BAR) not in KINDS:
        raise ValueError(
            f'{VARIABLE} or kernels(): {kind!r} is unknown; choose one of {", ".join(KINDS)}, '
            f'or {BAR}<kind> to do without one'
        )


# What speaks against an implementation: called with an operator's arguments, of which the first tells the device.
# Reasons are constants where they can be, which graphs follow.


def serves_all(*_: Any, **__: Any) -> None:
    """Nothing ever does."""


def graph(*_: Any, **__: Any) -> str | None:
    """That a graph is being made, which would hold what is known of this call alone."""
    return 'a graph is being made' if is_graph() else None


def eager_cpu(x: Tensor, *_: Any, **__: Any) -> str | None:
    """What speaks against code for CPUs outside of graphs."""
    return graph() or ('tensors are not on the CPU' if x.device.type != 'cpu' else None)


def eager_gpu(x: Tensor, *_: Any, **__: Any) -> str | None:
    """What speaks against code for accelerators outside of graphs; meta tensors stand for theirs."""
    return graph() or ('tensors are on the CPU' if x.device.type == 'cpu' else None)


def not_exported(*_: Any, **__: Any) -> str | None:
    """What speaks against code for exported programs, which runtimes run as it is written."""
    return None if is_exporting() else 'no program is being exported'


def not_exported_with(*sizes: int) -> str | None:
    """What speaks against code that is written out for these sizes."""
    return not_exported() or ('a size of the program is left open' if is_symbol(*sizes) else None)


def no_triton(*tensors: Tensor | None) -> str | None:
    """What speaks against kernels in Triton; meta tensors stand for a GPU's, and its interpreter runs on the CPU."""
    if IS_EXPORTING() or is_tracing() or IS_FX_TRACING():
        return 'a program is being exported'
    there = [t for t in tensors if t is not None]
    if any(t.dtype not in (torch.float32, torch.float16, torch.bfloat16) for t in there):
        return 'a tensor is neither float32 nor float16 nor bfloat16'
    return _no_triton_on(there[0].device.type, there[0].device.index) or not_plain(*tensors)


@torch.compiler.assume_constant_result
def _no_triton_on(device: str, index: int | None) -> str | None:
    return _no_triton_for(device, index, os.environ.get('TRITON_INTERPRET') == '1')


@functools.cache
def _no_triton_for(device: str, index: int | None, interpreted: bool) -> str | None:
    if device == 'cpu' and not interpreted:
        return 'tensors are on the CPU'
    if device not in ('cpu', 'cuda', 'meta'):
        return f'tensors are on {device}'
    if importlib.util.find_spec('triton') is None:
        return 'Triton is not installed'
    import triton

    if tuple(map(int, triton.__version__.split('.')[:2])) < OLDEST_TRITON:
        oldest = '.'.join(map(str, OLDEST_TRITON))
        return f'Triton {triton.__version__} is older than {oldest}, with which the kernels are tested'
    if device == 'cuda' and not torch.version.hip and torch.cuda.get_device_capability(index) < (8, 0):
        return 'the GPU is older than compute capability 8.0'
    return None


def not_plain(*tensors: Tensor | None) -> str | None:
    """That a tensor is of a class of its own, as quantised or sharded weights are, which torch's operators know."""
    if all(t is None or type(t) in (Tensor, nn.Parameter) for t in tensors):
        return None
    return 'a tensor is of a class of its own'


def is_graph() -> bool:
    """Whether a graph is being made: by torch.compile, torch.export, ONNX's or TorchScript's tracer, or torch.fx."""
    return torch.compiler.is_compiling() or is_tracing() or IS_FX_TRACING()


def is_exporting() -> bool:
    """Whether torch.export makes a program, for ONNX or for itself; torch 2.6 cannot tell, and says no."""
    return hasattr(torch.compiler, 'is_exporting') and torch.compiler.is_exporting()


def makes_sizes_constants() -> bool:
    """Whether ONNX's old tracer makes a file, which is right for the traced size alone."""
    return is_tracing() and torch.onnx.is_in_onnx_export()


def loses_ranges() -> bool:
    """Whether a graph is made which does not keep the sizes that it is right for: ONNX's, or one through dynamo.

    torch 2.6 cannot tell the latter, and says no.
    """
    through_dynamo = torch.compiler.is_dynamo_compiling() and is_exporting()
    return not is_tracing() and (torch.onnx.is_in_onnx_export() or through_dynamo)


def is_symbol(*sizes: int) -> bool:
    """Whether a graph is being exported in which one of these sizes is not a number yet."""
    return any(isinstance(size, torch.SymInt) for size in sizes)


def has_backward() -> bool:
    """Whether results are kept for gradients; a TorchScript trace holds the forward pass alone."""
    return torch.is_grad_enabled() and not is_tracing()


def is_watched(module: nn.Module, parts: bool = True) -> bool:
    """Whether hooks hang on it or on its ``parts``, or on all modules: short cuts would pass them by."""
    everywhere = nn.modules.module
    if everywhere._global_forward_hooks or everywhere._global_forward_pre_hooks:
        return True
    return any(
        part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for part in (module.modules() if parts else (module,))
    )


def reads_at_once(x: Tensor) -> bool:
    """Whether its value is there without a wait for a device that computes on its own."""
    return x.device.type == 'cpu'


def has_fast_float64(x: Tensor) -> bool:
    """Whether float64 costs about twice float32, as on CPUs; on GPUs it is up to 64 times."""
    return x.device.type == 'cpu'


def is_autocast(x: Tensor) -> bool:
    """Whether operators would bring x to half precision; meta tensors know no autocast."""
    return x.device.type != 'meta' and torch.is_autocast_enabled(x.device.type)


def no_autocast(x: Tensor) -> contextlib.AbstractContextManager:
    """Inside this region operators run in the dtype of their inputs, whatever autocast is set to."""
    kind = x.device.type
    return contextlib.nullcontext() if kind == 'meta' else torch.autocast(kind, enabled=False)
