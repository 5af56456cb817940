"""What tests of every room share: a small architecture, golden weights, the error that is compared."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from mmsoft.ops.dispatch import no_triton

ROOT = Path(__file__).parent.parent.parent
TOOLS = ROOT / 'tools'
DATA = ROOT / 'tests' / 'data'


def usable_device(name: str) -> torch.device:
    """The device of this name; pytest ends with a sentence if torch does not have it here."""
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):  # the second from torch that is built without CUDA
        sys.exit(
            f'MMSOFT_TEST_DEVICE is {name!r}, which torch has not here: name cpu or cuda; see python -m mmsoft.env'
        )
    return torch.device(name)


DEVICE = usable_device(os.environ.get('MMSOFT_TEST_DEVICE') or 'cpu')  # of tests marked cuda
# torch.compile's backend on CPUs calls a C++ compiler, which nothing else needs; graphs are compared all the same.
HEADERS = Path(sysconfig.get_paths()['include']) / 'Python.h'
INDUCTOR = 'inductor' if shutil.which(os.environ.get('CXX', 'g++')) and HEADERS.is_file() else 'aot_eager'
MINI = dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 1, 2, 1))


class Golden:
    """Weights, inputs and outputs of the authors' code for a small random instance."""

    def __init__(self, attn: str) -> None:
        self.attn = attn
        with np.load(DATA / f'{attn}.npz') as data:
            arrays = {name: torch.from_numpy(data[name]).float().to(DEVICE) for name in data.files}
        self.weights = {name[3:]: value for name, value in arrays.items() if name.startswith('sd/')}
        self.inputs = {name[2:]: value for name, value in arrays.items() if name.startswith('x/')}
        self.outputs = {name: value for name, value in arrays.items() if not name.startswith(('sd/', 'x/'))}


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference over the largest absolute value expected."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    found, expected = found.detach().cpu().double(), expected.detach().cpu().double()
    size = expected.abs().max().item()
    assert size > 0, 'nothing to compare with'
    return (found - expected).abs().max().item() / size


def assert_as_in_float64(
    found: torch.Tensor,
    expected: torch.Tensor,
    single: Sequence[torch.Tensor],
    double: Sequence[torch.Tensor],
    bound: float,
) -> None:
    """Values, and the gradients of the leaves that they were made of, at some gradient of the output."""
    assert relative_error(found, expected) < bound
    weight = torch.randn_like(expected).to(found.dtype)
    exact = torch.autograd.grad(expected, double, weight.double())
    for leaf, gradient, one in zip(single, torch.autograd.grad(found, single, weight), exact, strict=True):
        assert gradient.dtype == leaf.dtype
        assert relative_error(gradient, one) < bound


def needs_triton() -> None:
    """Skip the test, or the whole file, where no GPU would run the kernels."""
    reason = no_triton(torch.empty(0, device='meta'))
    if reason:
        pytest.skip(reason, allow_module_level=True)


# Whole models of any height and width; make_graph says the same in a sentence.
exports_whole_models = pytest.mark.skipif(
    torch.__version__.startswith('2.6.'), reason='torch 2.6 exports no graphs of any size'
)


def first_on_path(folder: Path) -> dict[str, str]:
    """The environment of a process that looks for modules in ``folder``, then in this checkout."""
    return dict(os.environ, PYTHONPATH=f'{folder}{os.pathsep}{ROOT}')
