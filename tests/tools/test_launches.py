"""Launches and bytes, counted without a GPU; and times predicted from them."""

import json
import subprocess
import sys

import pytest
import torch
from benchmark.cases import Case
from benchmark.counter import KERNELS, Asked, Launches, count
from benchmark.launches import MODELS, SIZE, check_formula, check_markdown
from benchmark.prediction import GPUS, Machine, predicted
from helpers import ROOT, TOOLS, needs_triton
from torch.nn.functional import linear

from mmsoft.models import FAMILIES

TOOL = [sys.executable, str(TOOLS / 'benchmark.py')]
REPORT = json.loads((ROOT / 'docs' / 'benchmarks' / 'launches.json').read_text())


def test_operators_count_once_and_views_never():
    x, w, b = (torch.zeros(*shape, device='meta') for shape in ((8, 3), (5, 3), (5,)))
    with Launches() as seen:
        linear(x, w, b).t()[:2].unsqueeze(0)
    assert seen.calls == {'addmm': 1}
    assert seen.bytes == {'addmm': 4 * (8 * 3 + 5 * 3 + 5 + 8 * 5)}


@pytest.mark.parametrize('task', ['forward', 'train'])
def test_kernels_count_as_one_launch_each(task):
    """SOFT++ tiny has six layers of SOFT: five launches a layer forward, nine more in training."""
    needs_triton()
    case = Case('soft_pp_tiny', (64, 64), task)
    fast, portable = count(case, KERNELS), count(case, 'portable')
    ours = sum(number for name, number in fast.calls.items() if name.startswith(('landmark_', 'kernel_')))
    assert ours == 6 * (5 if task == 'forward' else 14)
    assert fast.asked.launches < portable.asked.launches / 3
    assert fast.asked.macs == portable.asked.macs


@pytest.mark.parametrize('task', ['forward', 'train'])
@pytest.mark.parametrize('model', ['soft_pp_tiny', 'inline_swin_tiny', 'inline_cswin_tiny', 'mila_tiny', 'ravlt_tiny'])
def test_the_committed_table_is_what_runs(model, task):
    """Launches and bytes never change unseen: run tools/benchmark.py --suite launches again after a change."""
    needs_triton()
    (row,) = (r for r in REPORT['cases'] if (r['model'], r['road'], r['task']) == (model, KERNELS, task))
    found = count(Case(row['model'], SIZE, row['task']), row['road']).asked
    assert found.launches <= row['launches']
    assert found.bytes_moved <= 1.001 * row['bytes_moved']
    if REPORT['machine']['torch'] == torch.__version__:  # others may take operators apart in other ways
        assert (found.launches, found.bytes_moved) == (row['launches'], row['bytes_moved'])


def test_the_committed_table_has_every_family():
    models = {row['model'] for row in REPORT['cases']}
    assert models == {*MODELS}
    for family in FAMILIES.values():
        assert family.backbone.__module__.partition('.')[0] != 'mmsoft' or models & {*family.variants}


def test_a_prediction_is_the_formula():
    on = Machine(bandwidth=100, peak=10, half_peak=40, launch=1)
    assert predicted(Asked(launches=3, bytes_moved=200, macs=20), on) == dict(fp32=6, bf16=3, graph_bf16=2)
    times = predicted(Asked(0, 2039 * 10**6, 0), GPUS['A100 SXM 80 GB'])
    assert times['fp32'] == pytest.approx(1e-3)


@pytest.mark.slow
def test_the_formula_is_held_against_this_cpu():
    said = []
    report = check_formula(said.append, 2, ('soft_pp_tiny', 'swin_tiny'), (64, 64))
    for row in report['cases']:
        assert row['error'] == pytest.approx(row['predicted'] / row['measured'] - 1)
        device = row['bytes_moved'] / row['bandwidth'] + 2 * row['macs'] / row['peak']
        assert row['predicted'] == pytest.approx(max(row['launches'] * row['launch'], device))
    assert report['worst'] == max(abs(row['error']) for row in report['cases'])
    assert f'worst {report["worst"]:.0%}' in check_markdown(report)
    assert len(said) == 2


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (['launches', '--rounds', '3'], "--suite launches does not read 'rounds'; its options are --out, --name"),
        (['prediction', '--device', 'cuda'], "--suite prediction does not read 'device'; its options are --out"),
        (['prediction', '--rounds', '0'], '--rounds must be 1 or more; got 0'),
    ],
)
def test_options_that_a_count_does_not_read_are_refused(options, message):
    run = subprocess.run([*TOOL, '--suite', *options], capture_output=True, text=True)
    assert run.returncode == 1
    assert message in run.stderr
