"""The kernels as machine code for real targets: they compile, within their budgets, as docs/gpu_kernels.md says."""

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


def test_budgets_fail():
    assert 'bytes spilled' in gpu_kernels.excess('sm_90', 255, 4, 0)
    assert gpu_kernels.excess('sm_80', 255, 256, 0) is None
    assert 'shared memory' in gpu_kernels.excess('sm_86', 255, 0, 100 * 1024)
