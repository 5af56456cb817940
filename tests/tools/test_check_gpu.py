"""The check of a GPU, rehearsed on the CPU; that it finds what is wrong, and goes on where memory ends."""

import contextlib
import json
import math
import os
import subprocess
import sys

import check_gpu
import pytest
import torch
from benchmark import measure, on_gpu
from benchmark.cases import Case, check_case
from benchmark.measure import Record
from helpers import ROOT, TOOLS, needs_triton

TOOL = [sys.executable, str(TOOLS / 'check_gpu.py')]


@pytest.mark.slow
def test_a_rehearsal_runs_through(tmp_path):
    needs_triton()
    environment = dict(os.environ, OMP_NUM_THREADS='1')
    run = subprocess.run(
        [*TOOL, '--rehearse', '--rounds', '1', '--out', str(tmp_path)], capture_output=True, text=True, env=environment
    )
    assert run.returncode == 0, run.stderr
    report = json.loads((tmp_path / 'report.json').read_text())
    assert report['rehearsal']
    names = {one['name'].partition(',')[0] for one in report['checks']}
    operators = {'softmax_free_attention', 'inline_attention', 'dynamic_depthwise', 'add_norm'}
    operators |= {
        'add_head_convolution',
        'add_predicted_convolution',
        'inline_with_convolution',
        'linear_gelu',
        'linear_attention',
        'add_depthwise',
        'rotary_features',
        'rotate',
    }
    assert names == operators | {'soft_pp_tiny'}
    assert all(one['passed'] for one in report['checks'])
    assert report['tests']['exit'] == 0
    rows = report['measured']['cases']
    assert len(rows) == 12
    assert all(row['seconds'] > 0 for row in rows)
    text = (tmp_path / 'report.md').read_text()
    assert text.strip() in run.stdout
    assert 'Nothing wrong was found' in text


@pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')
def test_without_a_gpu_it_says_so_at_once(tmp_path):
    run = subprocess.run([*TOOL, '--out', str(tmp_path / 'out')], capture_output=True, text=True)
    assert run.returncode == 1
    assert 'torch is built ' in run.stderr
    assert 'Traceback' not in run.stderr
    assert not (tmp_path / 'out').exists()


def test_a_kernel_that_is_wrong_fails_or_does_not_run(monkeypatch):
    """On the CPU no kernel runs, which must not pass for a success; nor does a wrong result, nor NaN."""
    monkeypatch.delenv('TRITON_INTERPRET', raising=False)
    checks = list(on_gpu.check_operators('cpu', True))
    assert len(checks) == 12 * 3
    assert all('its kernel does not run' in one.failed and not one.passed for one in checks)
    op = on_gpu.OPERATORS['inline_attention']
    monkeypatch.setattr(op, 'choice', lambda *_: 'triton')
    (right,) = (i for i in op.implementations if i.kind == 'portable')
    example = on_gpu.SHAPES[op.name][0]
    good = on_gpu._tried('good', 1e-4, on_gpu._operator, op, example, 'fp32', 'cpu')
    assert good.passed, good
    wrong = right._replace(kind='triton', run=lambda q, k, v: 1.01 * right.run(q, k, v))
    monkeypatch.setattr(op, 'implementations', (wrong, right))
    bad = on_gpu._tried('bad', 1e-4, on_gpu._operator, op, example, 'fp32', 'cpu')
    assert not bad.passed
    assert bad.output == pytest.approx(0.01, rel=0.1)
    for name in ('output', 'gradient'):
        assert not good._replace(**{name: float('nan')}).passed
    assert math.isnan(on_gpu._worst([torch.ones(2), torch.full((2,), math.nan)], [torch.ones(2)] * 2))


def test_the_kernels_own_tests_run_on_the_device(monkeypatch):
    ran = []

    def run(words, environment):
        ran.append((words, environment['MMSOFT_TEST_DEVICE']))
        return (1, 'FAILED one\n1 failed') if words[-1].endswith('test_triton_interpreted.py') else (0, '9 passed')

    monkeypatch.setattr(check_gpu, 'run', run)
    report = dict(faults=[])
    check_gpu.test(report, 'cuda')
    assert [device for _, device in ran] == ['cuda', 'cuda']
    assert report['tests'] == dict(exit=1, summary='9 passed; 1 failed', failed=['FAILED one'])
    assert report['faults'] == ['tests: 9 passed; 1 failed']
    assert (ROOT / ran[1][0][-1]).exists()


def test_smaller_sizes_follow_where_memory_ends(monkeypatch):
    def measured(case, rounds):
        big = case.size[0] > 400
        return Record('group', case, failure='OutOfMemoryError: CUDA out of memory. Tried' if big else None)

    monkeypatch.setattr(on_gpu, '_measured', measured)
    records = on_gpu.measure_down(Case('swin_tiny', (800, 1344)), 1)
    assert [record.case.size for record in records] == [(800, 1344), (512, 864), (320, 544)]
    assert [bool(record.failure) for record in records] == [True, True, False]


def test_every_way_is_measured():
    groups = on_gpu.cases('cuda', on_gpu.SIZES, on_gpu.MODELS, False)
    assert len(groups) == len(on_gpu.SIZES) * len(on_gpu.MODELS)
    for chosen in groups:
        assert len({*chosen}) == len(chosen) >= 12
        assert {(c.task, c.precision) for c in chosen if c.graph} == {(c.task, c.precision) for c in chosen}
    assert {c.size for chosen in groups for c in chosen if c.compiled} == {on_gpu.SIZES[-1]}
    assert all(c.compiled for chosen in on_gpu.cases('cpu', [(64, 64)], ['swin_tiny'], True) for c in chosen[1::2])
    with pytest.raises(ValueError, match='CUDA graphs need a GPU'):
        check_case(Case('swin_tiny', (64, 64), graph=True))
    assert Case('swin_tiny', (64, 64), graph=True).label == 'swin_tiny CUDA graph'


def test_a_graph_is_captured_after_runs_aside_and_replayed(monkeypatch):
    """The order that CUDA graphs ask for, with CUDA's parts replaced by what writes down their use."""
    done = []

    class Stream:
        def __init__(self, name='aside'):
            self.name = name

        def wait_stream(self, other):
            done.append(f'{self.name} waits for {other.name}')

    class Graph:
        def replay(self):
            done.append('replay')

    @contextlib.contextmanager
    def within(what):
        done.append(f'into {getattr(what, "name", "graph")}')
        yield
        done.append('out')

    replacements = dict(
        Stream=Stream, current_stream=lambda: Stream('main'), stream=within, graph=within, CUDAGraph=Graph
    )
    for name, replacement in replacements.items():
        monkeypatch.setattr(torch.cuda, name, replacement)
    runs = measure._Runs(Case('swin_tiny', (64, 64)))
    runs.inputs = None
    monkeypatch.setattr(runs, '_step', lambda inputs: done.append('step'))
    runs._capture()
    assert done == []  # no graph is asked for
    runs.case = runs.case._replace(graph=True, device='cuda')
    runs._capture()
    runs.run()
    warm = ['step'] * measure.GRAPH_WARM_UPS
    aside = ['aside waits for main', 'into aside', *warm, 'out', 'main waits for aside']
    assert done == [*aside, 'into graph', 'step', 'out', 'replay']
    assert warm
