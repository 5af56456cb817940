"""Shared fixtures: golden weights, a small architecture, quiet threads."""

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from helpers import Golden
from small_worlds import SMALL

from mmsoft.datasets.miniature import WORLDS, write_world


@pytest.fixture(scope='session', params=['soft', 'soft_pp'])
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


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
