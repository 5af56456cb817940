"""The benchmark, run for real at small sizes."""

import csv
import json
import re
import runpy
import signal
import subprocess
import sys
import time

import pytest
import torch
from benchmark import SUITES, Options
from benchmark.attention import MaterialisedAttention
from benchmark.cases import GEMMS, TASKS, WHOLE, Case, attentions, backbones, build, check_case
from benchmark.measure import Group, Record, Worker, _Runs, _step, _weigh, measure_group
from benchmark.plots import plot_report
from benchmark.report import exponent, make_report, markdown
from benchmark.whole_models import CONFIGS
from helpers import TOOLS, first_on_path

from mmsoft.engine.complexity import count_call
from mmsoft.layers import SoftmaxAttention

TOOL = [sys.executable, str(TOOLS / 'benchmark.py')]
ONCE = Options(rounds=1, threads=1, memory=True, memory_samples=1)


def quiet(text):
    pass


@pytest.mark.slow
def test_the_tool_measures_and_its_files_agree(tmp_path):
    arguments = ['--models', 'soft_pp_tiny', 'swin_tiny', '--sizes', '64x96', '--tasks', 'forward', 'train']
    arguments += ['--precisions', 'bf16', '--with-cp', '--rounds', '2', '--threads', '1', '--memory-samples', '2']
    arguments += ['--gemm', '256', '--out', str(tmp_path)]
    run = subprocess.run([*TOOL, *arguments], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert 'group 1 of 2: forward 64x96' in run.stderr
    report = json.loads((tmp_path / 'selection.json').read_text())
    rows = report['cases']
    gemms = ['gemm bf16', 'gemm_as_convolution bf16']
    assert [row['label'] for row in rows[:4]] == ['soft_pp_tiny bf16', 'swin_tiny bf16', *gemms]
    train = ['soft_pp_tiny bf16', 'soft_pp_tiny bf16 with_cp', 'swin_tiny bf16']
    assert [row['label'] for row in rows[4:]] == [*train, *gemms]
    for row in rows:
        assert row['failure'] is None
        assert len(row['seconds_samples']) == 2
        assert 0 < row['seconds_min'] <= row['seconds'] <= row['seconds_max']
        assert row['model'] in GEMMS or (0 < row['gemm_share'] < 1 and row['peak_mib'] >= 0)
    assert [len(row['peak_mib_samples']) for row in rows] == [2, 2, 0, 0, 2, 2, 2, 0, 0]
    train, checkpointed = rows[4], rows[5]
    assert train['macs'] == checkpointed['macs']  # what is computed twice is not work
    assert train['macs'] == 3 * rows[0]['macs']
    assert report['machine']['threads'] == 1
    assert report['machine']['mmdet']
    ratios = {(row['group'], row['label'], row['to']): row for row in report['ratios']}
    assert len(ratios) == 4
    ratio = ratios['forward 64x96', 'soft_pp_tiny bf16', 'swin_tiny bf16']
    assert ratio['seconds'] == pytest.approx(rows[0]['seconds'] / rows[1]['seconds'])
    assert ('train 64x96', 'soft_pp_tiny bf16 with_cp', 'soft_pp_tiny bf16') in ratios
    with (tmp_path / 'selection.csv').open() as file:
        table = list(csv.DictReader(file))
    assert [float(row['seconds']) for row in table] == [row['seconds'] for row in rows]
    assert f'| soft_pp_tiny bf16 | swin_tiny bf16 | forward 64x96 | {ratio["seconds"]:.2f} (' in run.stdout
    plots = {path.name for path in tmp_path.iterdir()} - {'selection.json', 'selection.csv'}
    kinds = ('ratio_time', 'ratio_memory', 'gemm_share')
    assert plots == {f'selection_{kind}.{suffix}' for kind in kinds for suffix in ('png', 'svg')}


MINE = """
from mmsoft import SOFT, SOFTClassifier
from mmsoft.layers import LinearAttention
from mmsoft.models import Family, register_attention, register_family
register_attention('mine', lambda place: LinearAttention(place.dim, place.heads, 'exp'))
class Mine(SOFT):
    pass
class MineClassifier(SOFTClassifier):
    pass
of = dict(archs=dict(tiny=None), ours=('mine',), options=dict)
register_family(Family(title='Mine', backbone=Mine, classifier=MineClassifier, **of))
"""


@pytest.mark.slow
def test_attentions_and_families_of_ones_own_are_measured(tmp_path):
    (tmp_path / 'mine.py').write_text(MINE)
    arguments = ['--import', 'mine', '--models', 'attention:mine', 'mine_tiny', '--sizes', '32', '--rounds', '1']
    arguments += ['--gemm', '0', '--no-memory', '--threads', '1']
    run = subprocess.run([*TOOL, *arguments], capture_output=True, text=True, env=first_on_path(tmp_path))
    assert run.returncode == 0, run.stderr
    assert '| attention:mine |' in run.stdout
    assert '| mine_tiny |' in run.stdout


@pytest.mark.slow
def test_peak_memory_is_that_of_the_case():
    """Known sizes: a product of 2048 x 2048 adds its result, 16 MiB; attention scores are counted as well."""
    grid = (20, 40)
    cases = (Case('gemm', (2048, 2048)), Case('attention:softmax', grid), Case('attention:softmax_sdpa', grid))
    records = [Record('memory', case) for case in cases]
    for record in records:
        _weigh(record, ONCE)
    product, scores, fused = (record.peak_mib[0] for record in records)
    assert 15 < product < 20
    assert scores - fused > 12 * 800**2 * 4 / 2**20  # MiB of one matrix of scores


@pytest.mark.slow
def test_a_failing_case_is_told_and_the_others_go_on():
    records = []
    ours = Case('attention:soft_pp', (8, 8))
    enormous = ours._replace(model='attention:softmax', size=(2**12, 2**12))
    measure_group(Group('some', (enormous, ours)), ONCE, records, quiet)
    assert re.fullmatch(r'skipped: softmax scores of 16777216 tokens need .* GiB available', records[0].failure)
    assert records[1].failure is None
    assert len(records[1].seconds) == 1
    report = make_report('some', records, ('softmax',), ONCE)
    assert f'| attention:softmax | {records[0].failure} |' in markdown(report)
    assert report['cases'][0]['seconds'] is None
    assert report['ratios'] == []
    worker = Worker(records[1], ONCE)
    worker.process.kill()
    assert worker.ask('build') is None
    worker.close()
    assert records[1].failure == 'its process ended with SIGKILL (out of memory?)'
    assert '; then its process ended' in markdown(make_report('some', records, (), ONCE))


@pytest.mark.slow
def test_an_interrupted_run_writes_what_it_has(tmp_path):
    arguments = ['--models', 'attention:soft_pp', '--sizes', '8', '16', '--rounds', '1000', '--gemm', '0']
    run = subprocess.Popen([*TOOL, *arguments, '--out', str(tmp_path)], stderr=subprocess.PIPE, text=True)
    while 'round 2' not in (line := run.stderr.readline()):
        assert line, 'it ended by itself'
    run.send_signal(signal.SIGTERM)
    started = time.monotonic()
    assert 'interrupted: what was measured so far is reported' in run.stderr.read()
    assert run.wait() == 0
    assert time.monotonic() - started < 20
    (row,) = json.loads((tmp_path / 'selection.json').read_text())['cases']
    assert 2 <= len(row['seconds_samples']) < 1000


@pytest.mark.slow
@pytest.mark.parametrize('name', backbones())
def test_every_backbone_builds_and_is_counted_without_computing(name):
    case = Case(name, (64, 96))
    work = build(case, 'meta')
    small, large = (
        count_call(lambda size=size: _step(case, work, work.inputs(size))) for size in (case.size, (64, 192))
    )
    assert 1.4 < large / small < 2.6


@pytest.mark.slow
@pytest.mark.parametrize('task', TASKS)
@pytest.mark.parametrize(
    'model', ['retinanet:soft_pp_tiny', 'mask_rcnn:convnext_tiny', 'upernet:swin_tiny', 'retinanet:resnet50']
)
def test_whole_models_run(model, task):
    case = Case(model, (96, 128), task, batch=2 if 'upernet' in model else 1)  # its BatchNorm needs two
    work = build(case)
    inputs = work.inputs(case.size)
    assert inputs['inputs'].shape == (case.batch, 3, 96, 128)
    if task == 'train':
        loss = work.call(inputs)
        loss.backward()
        assert 0 < loss.item() < 1000
        assert sum(p.grad is not None for p in work.module.backbone.parameters()) > 10
    _step(case, work, inputs)
    assert all(p.grad is None for p in work.module.parameters())


def test_attentions_by_name():
    assert tuple(CONFIGS) == WHOLE
    plain, fused = MaterialisedAttention(24, 3), SoftmaxAttention(24, 3)
    fused.load_state_dict(plain.state_dict())
    x = torch.randn(2, 12, 24)
    assert torch.allclose(plain(x, (3, 4)), fused(x, (3, 4)), atol=1e-6)
    counts = {}
    for name in attentions():
        for p in (1, 2):
            case = Case(f'attention:{name}', (28, 28 * p))
            counts[name, p] = _Runs(case).count()
    growth = {name: counts[name, 2] / counts[name, 1] for name in attentions()}
    assert max(growth['soft'], growth['soft_pp']) < 2.05  # linear
    assert growth['softmax'] == growth['softmax_sdpa'] > 2.5


@pytest.mark.parametrize('suite', SUITES)
def test_suites_are_made_of_valid_cases(suite):
    groups = SUITES[suite]()
    assert len({group.name for group in groups}) == len(groups) > 3
    for group in groups:
        assert len(set(group.cases)) == len(group.cases) > 1
        for case in group.cases:
            check_case(case)


def test_exponents_of_power_laws(tmp_path):
    tokens = [100, 400, 3000, 90000]
    assert exponent(tokens, [5e-6 * n**1.7 for n in tokens]) == pytest.approx(1.7)
    records = []
    for side in (224, 448, 800, 1600):  # 224 does not lie on the line, and is left out
        case = Case('soft_tiny', (side, side))
        seconds = case.tokens**1.2 if side > 224 else 1e6
        records.append(Record('g', case, [seconds], [case.tokens * 3.0]))
    report = make_report('law', records, (), ONCE)
    (fit,) = report['fits']
    assert (fit['seconds'], fit['peak_mib']) == (pytest.approx(1.2), pytest.approx(1.0))
    assert fit['tokens'] == [side**2 // 16 for side in (448, 800, 1600)]
    written = plot_report(report, tmp_path)
    assert {path.name for path in written} == {
        f'law_forward_{what}.{kind}' for what in ('time', 'memory') for kind in ('png', 'svg')
    }
    assert all(path.stat().st_size > 5000 for path in written)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--models', 'swin_huge'], "error: backbone 'swin_huge' is unknown; choose one of soft_tiny, "),
        (
            ['--models', 'yolo:swin_tiny'],
            "'yolo:swin_tiny' is unknown; before the colon comes one of attention",
        ),
        (['--models', 'attention:none'], "attention 'none' is unknown; choose one of softmax, softmax_sdpa, soft_pp, "),
        (['--models', 'swin_tiny', '--suite', 'figures'], 'error: --suite fixes its cases: leave out --models'),
        (['--suite', 'sizes', '--batch', '2'], 'error: a suite fixes its batch: give --models to choose your own'),
        (['--models', 'soft_tiny', '--with-cp'], 'with-cp saves memory in training steps: add --tasks train'),
        (['--models', 'swin_tiny', '--published-landmarks'], 'is for SOFT backbones, of which --models has none'),
        (
            ['--models', 'soft_tiny', '--sizes', '22x'],
            "a side or HEIGHTxWIDTH, as in 224 800x1344; got '22x'",
        ),
        (['--models', 'soft_tiny', '--peer', 'swin_tiny'], '--peer swin_tiny is not measured; choose from soft_tiny'),
        (['--no-memory', '--memory-samples', '3'], '--memory-samples has nothing to do with --no-memory'),
        (['--rounds', '0'], 'error: --rounds must be 1 or more; got 0'),
    ],
)
def test_what_cannot_be_measured_is_said_at_once(arguments, message, monkeypatch):
    monkeypatch.setattr(signal, 'signal', lambda *_: None)
    monkeypatch.setattr(sys, 'argv', [TOOL[1], *arguments])
    with pytest.raises(SystemExit) as told:
        runpy.run_path(TOOL[1], run_name='__main__')
    assert message in str(told.value)
