"""Shared fixtures, and on which device tests compute."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from helpers import DEVICE, Golden
from small_worlds import SMALL

from mmsoft.datasets.miniature import WORLDS, write_world


@pytest.fixture(scope='session', params=['soft', 'soft_pp'])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


ON_DEVICE = {'ops', 'layers', 'models', 'mmcv_ops'}  # rooms whose tests need tensors only


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name in ON_DEVICE:
            item.add_marker('cuda')


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where tensors and models of the test are made: on MMSOFT_TEST_DEVICE if the test is marked cuda."""
    torch.manual_seed(0)
    if DEVICE.type == 'cpu' or not request.node.get_closest_marker('cuda'):
        yield torch.device('cpu')
        return
    with DEVICE:
        yield DEVICE


@pytest.fixture(scope='session')
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All three miniature worlds below one folder, to read and to copy."""
    root = tmp_path_factory.mktemp('worlds')
    for world in WORLDS:
        write_world(world, root, **SMALL)
    return root


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
