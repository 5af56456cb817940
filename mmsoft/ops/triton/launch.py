"""How kernels are started.

An operator of torch is one launch, so whatever watches operators (a counter, a profiler, a compiler) sees each launch.
Gradients are registered a level above, by functions that call several operators.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.jit import JITFunction

from mmsoft.ops.dispatch import not_plain

# Tensor cores round float32 to 10 bits; three products recover it. AMD's matrix units take float32 as it is.
PRECISION = 'ieee' if torch.version.hip else 'tf32x3'


def operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Register ``function``, which launches one kernel, as the operator ``mmsoft::<its name>``."""
    return torch.library.triton_op(f'mmsoft::{function.__name__}', function, mutates_args=())


class _Unlaunched:
    """In place of a kernel for tensors without data: nothing runs; ``launches`` lists what would have."""

    launches: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] | None = None

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return self._note

    def _note(self, *args: Any, **options: Any) -> None:
        if _Unlaunched.launches is not None:
            _Unlaunched.launches.append((self.kernel, args, options))


@contextlib.contextmanager
def recorded() -> Iterator[list[tuple[Any, tuple[Any, ...], dict[str, Any]]]]:
    """The launches (kernel, arguments, options) that operators would make for the meta tensors they get in here."""
    _Unlaunched.launches = []
    try:
        yield _Unlaunched.launches
    finally:
        _Unlaunched.launches = None


def wrap_triton(kernel: Any, tensor: Tensor) -> Any:
    """What starts ``kernel`` for such a tensor: torch reads the name of this function to find an operator's kernels."""
    if tensor.is_meta:
        return _Unlaunched(kernel)
    if not isinstance(kernel, JITFunction):
        return kernel
    wrapped = torch.library.wrap_triton(kernel)
    return _OnDevice(wrapped, tensor.device) if _is_elsewhere(tensor) else wrapped


def _is_elsewhere(tensor: Tensor) -> bool:
    """Whether it lies on a GPU that is not the current one, on which Triton starts kernels; graphs see to it."""
    return tensor.is_cuda and not not_plain(tensor) and tensor.device.index != torch.cuda.current_device()


class _OnDevice:
    """A kernel that starts on the GPU of its tensors."""

    def __init__(self, kernel: Any, device: torch.device) -> None:
        self.kernel, self.device = kernel, device

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*args: Any, **options: Any) -> None:
            with torch.cuda.device(self.device):
                self.kernel[grid](*args, **options)

        return run


def block(size: int) -> int:
    """The tile that holds ``size`` rows or columns: a power of two, of at least the 16 of a tensor core."""
    return max(16, triton.next_power_of_2(size))
