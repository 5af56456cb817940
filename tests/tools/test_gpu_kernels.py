"""The kernels as machine code for real targets: they compile, within their budgets, as docs/gpu_kernels.md says."""

import json
import re

import pytest
from helpers import needs_triton

needs_triton()
gpu_kernels = pytest.importorskip('gpu_kernels')
VARIANTS = gpu_kernels.variants()


def cells(line):
    return [cell.strip() for cell in line.strip('| \n').split('|')]


def committed():
    """{kernel: {target: cell}} of the page, and the Triton that made it."""
    text = gpu_kernels.PAGE.read_text()
    lines = [line for line in text.partition('## Launches')[0].splitlines() if line.startswith('| ')]
    targets = cells(lines[0])[2:]
    table = {cells(line)[0]: dict(zip(targets, cells(line)[2:], strict=True)) for line in lines[1:]}
    return table, text.split('with Triton ')[1].split(',')[0]


def test_the_page_has_all_kernels():
    table, _version = committed()
    assert list(table) == [one.name for one in VARIANTS]
    assert all(list(row) == list(gpu_kernels.TARGETS) for row in table.values())
    for name, row in table.items():
        for target, cell in row.items():
            registers, spilled, shared = (int(number) for number in cell.split(' / '))
            assert gpu_kernels.excess(target, registers, spilled, shared * 1024) is None, (name, target)


@pytest.mark.slow
@pytest.mark.parametrize('target', gpu_kernels.TARGETS)
def test_kernels_keep_within_their_budgets(target):
    table, version = committed()
    for i, one in enumerate(VARIANTS):
        registers, spilled, shared = gpu_kernels.compiled(i, target)
        assert gpu_kernels.excess(target, registers, spilled, shared) is None, one.name
        if version == gpu_kernels.triton.__version__:
            assert f'{registers} / {spilled} / {shared / 1024:.0f}' == table[one.name][target], one.name


@pytest.mark.parametrize(
    'name',
    [
        'stats, m 64',
        'sums, tokens 64, m 64, d 32, e 32',
        'output, kernel exp, tokens 64, d 32, e 32',
        'linear_output, tokens 64, d 32, e 32',
        'rotary_features, phi, tokens 32, pairs 16',
        'rotary_gradient, phi, tokens 32, pairs 16',
    ],
)
def test_bounds_keep_nan(name):
    """GPUs' plain max and min would make a number of it, so that nobody sees it; the interpreter never does."""
    (one,) = (one for one in VARIANTS if one.name == name)
    bounds = re.findall(r'\b(?:max|min)\.[\w.]*f32', gpu_kernels.machine_code(one, 'sm_80').asm['ptx'])
    assert bounds
    assert all('.NaN.' in bound for bound in bounds), bounds


def test_budgets_fail():
    assert 'bytes spilled' in gpu_kernels.excess('sm_90', 255, 4, 0)
    assert gpu_kernels.excess('sm_80', 255, 256, 0) is None
    assert 'shared memory' in gpu_kernels.excess('sm_86', 255, 0, 100 * 1024)


def test_the_counts_are_within_the_aims():
    """Of the committed report, beside which tests/tools/test_launches.py holds what runs."""
    rows = {
        (r['model'], r['task']): r
        for r in json.loads(gpu_kernels.COUNTS.read_text())['cases']
        if r['road'] == 'kernels'
    }
    for model, aims in gpu_kernels.AIMS.items():
        for task, (launches, size) in zip(('forward', 'train'), aims, strict=True):
            row = rows[model, task]
            assert row['launches'] <= launches, (model, task)
            assert row['bytes_moved'] <= 1e9 * size, (model, task)
    assert len(gpu_kernels.AIMS) == 3
