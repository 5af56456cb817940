"""Shared fixtures: golden weights, a small architecture, quiet threads."""

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from small_worlds import SMALL

from mmsoft.datasets.miniature import WORLDS, write_world

DATA = Path(__file__).parent / 'data'
# torch.compile's backend on CPUs calls a C++ compiler, which nothing else needs; graphs are compared all the same.
HEADERS = Path(sysconfig.get_paths()['include']) / 'Python.h'
INDUCTOR = 'inductor' if shutil.which(os.environ.get('CXX', 'g++')) and HEADERS.is_file() else 'aot_eager'
MINI = dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4), depths=(1, 1, 2, 1))


class Golden:
    """Weights, inputs and outputs of the authors' code for a small random instance."""

    def __init__(self, attn: str) -> None:
        self.attn = attn
        with np.load(DATA / f'{attn}.npz') as data:
            arrays = {name: torch.from_numpy(data[name]).float() for name in data.files}
        self.weights = {name[3:]: value for name, value in arrays.items() if name.startswith('sd/')}
        self.inputs = {name[2:]: value for name, value in arrays.items() if name.startswith('x/')}
        self.outputs = {name: value for name, value in arrays.items() if not name.startswith(('sd/', 'x/'))}


@pytest.fixture(scope='session', params=['soft', 'soft_pp'])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest absolute difference over the largest absolute value expected."""
    assert found.shape == expected.shape, (found.shape, expected.shape)
    size = expected.double().abs().max().item()
    assert size > 0, 'nothing to compare with'
    return (found.double() - expected.double()).abs().max().item() / size


@pytest.fixture(scope='session')
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three miniature worlds below one folder, to read and to copy."""
    root = tmp_path_factory.mktemp('worlds')
    for world in WORLDS:
        write_world(world, root, **SMALL)
    return root


def first_on_path(folder: Path) -> dict[str, str]:
    """The environment of a process that looks for modules in ``folder``, then in this checkout."""
    return dict(os.environ, PYTHONPATH=f'{folder}{os.pathsep}{Path(__file__).parent.parent}')


@pytest.fixture
def mmcv_without_compiler(tmp_path: Path) -> Path:
    """A folder with a copy of the installed mmcv, but nothing compiled and nothing of ours in it."""
    source = Path(importlib.util.find_spec('mmcv').origin).parent
    for file in source.rglob('*.py'):
        if file.name != '_ext.py':
            target = tmp_path / 'mmcv' / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, target)
    return tmp_path
