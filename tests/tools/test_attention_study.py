"""The comparison of attentions: what it measures on constructed weights, and a small run that resumes."""

import json
import runpy
import sys

import pytest
import torch
from benchmark.cases import pyramid_attentions
from benchmark.measure import Options
from helpers import relative_error
from small_runs import TOOLS
from studies import attention as attention_study
from studies.claims import local_kernels, near_share

from mmsoft.engine import demo
from mmsoft.layers import InLineAttention, LinearAttention, SoftmaxAttention
from mmsoft.visualization.claims import (
    are_alike,
    attention_weights,
    count_confusions,
    inline_weights,
    project,
    queries_and_keys,
)


def test_weights_are_what_a_layer_does():
    x, grid = torch.randn(1, 35, 24), (5, 7)
    for layer in (SoftmaxAttention(24, 3), LinearAttention(24, 3, 'relu'), InLineAttention(24, 3, 'relu', local=False)):
        weights = attention_weights(layer, *queries_and_keys(layer, x))
        v = project(layer, x)[2]
        assert relative_error(layer.proj((weights @ v).transpose(1, 2).flatten(2)), layer(x, grid)) < 1e-5
        assert torch.allclose(weights.sum(-1), torch.ones(1, 3, 35), atol=1e-5)
    with pytest.raises(TypeError, match='weights of SoftmaxAttention are not known'):
        attention_weights(SoftmaxAttention(24, 3, reduction=2), x, x)


def test_linear_attention_confuses_collinear_queries_and_inline_does_not():
    """Figure 1 of InLine's paper: the same direction in three lengths, with ReLU features."""
    layer = LinearAttention(8, 1, 'relu')
    for scale in (1.0, 0.01):  # small queries and keys have nearly uniform weights: what sets them apart counts
        q = scale * torch.rand(1, 1, 1, 8) * torch.tensor([1.0, 2.0, 5.0]).view(3, 1)
        k = scale * torch.randn(1, 1, 30, 8).relu()
        assert count_confusions(attention_weights(layer, q, k), q) == 3
        assert count_confusions(inline_weights(q, k), q) == 0
        assert are_alike(attention_weights(layer, q, k), attention_weights(layer, 2 * q, k)).all()
        assert not are_alike(inline_weights(q, k), inline_weights(2 * q, k)).any()
    same = torch.rand(1, 1, 1, 8).expand(-1, -1, 3, -1)  # the same query thrice is no confusion
    assert count_confusions(attention_weights(layer, same, k), same) == 0


def test_the_share_near_a_query():
    grid, count = (4, 6), 24
    uniform = torch.full((1, 2, count, count), 1 / count)
    rows, columns = (torch.tensor([min(i + 1, n - 1) - max(i - 1, 0) + 1 for i in range(n)]) for n in grid)
    share = (rows[:, None] * columns).float().mean() / count
    assert near_share(uniform, None, grid) == pytest.approx(share.item())
    assert near_share(torch.eye(count).expand(1, 2, -1, -1), None, grid) == pytest.approx(1)
    far = torch.eye(count).roll(3, 1).expand(1, 2, -1, -1)  # three columns away, or in another row
    assert near_share(far, None, grid) < 0.2
    kernels = torch.zeros(1, 8, 3, 3)
    assert near_share(uniform, kernels, grid) == pytest.approx(near_share(uniform, None, grid))
    kernels[:, :, 1, 1] = 1  # as much again on the query itself
    assert near_share(uniform, kernels, grid) == pytest.approx((share.item() + 1) / 2)
    layer = InLineAttention(24, 3)
    assert local_kernels(layer, torch.randn(1, count, 24)).shape == (1, 24, 3, 3)
    assert local_kernels(LinearAttention(24, 3), torch.randn(1, count, 24)) is None


@pytest.fixture
def short_demo(tmp_path, monkeypatch):
    monkeypatch.setenv('MMSOFT_DEMO_DATA', str(tmp_path / 'data'))
    for name, value in dict(IMAGES=10, VAL_IMAGES=4, CLASS_SCENES=(96, 128)).items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(attention_study, 'COST_SIZE', (64, 64))
    monkeypatch.setattr(attention_study, 'DENSE', (64, 96))
    monkeypatch.setitem(demo.BATCH, 'classes', 8)


@pytest.mark.slow
def test_a_run_scores_resumes_and_is_written(tmp_path, short_demo, monkeypatch):
    run, folder = ('linear', 'classification', 0, str(tmp_path / 'runs')), tmp_path / 'runs/linear/classification_0'
    score, claims = attention_study._run(run)
    assert 0 <= score <= 100
    # with ReLU features a query's double has its weights; not by InLine's formula
    assert (claims['own']['doubled'], claims['inline']['doubled']) == (1, 0)
    assert len(claims['own']['near']) == len(claims['inline']['near']) == 4
    box_ap, none = attention_study._run(('linear', 'detection', 0, str(tmp_path / 'runs')))
    assert 0 <= box_ap <= 100
    assert none is None
    before = {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()}
    assert attention_study._run(run) == (score, claims)  # a second time, nothing is done
    assert {path: path.stat().st_mtime_ns for path in folder.rglob('*') if path.is_file()} == before
    # the pool's processes, which know nothing of the shorter demo, find everything done; costs are measured
    lines, options = [], Options(rounds=1, threads=1)
    result = attention_study.study(tmp_path / 'runs', (0,), ['linear'], options, lines.append, jobs=1)
    assert result['scores'] == dict(linear=dict(classification=[score], detection=[box_ap]))
    assert result['claims'] == dict(linear=claims)
    told = zip(attention_study.TASKS, (score, box_ap), strict=True)
    assert lines[:2] == [f'linear, ReLU, {task}, seed 0: {value:.1f}' for task, value in told]
    assert len(lines) == 2 + 3  # and a round of each group
    again = attention_study.study(tmp_path / 'runs', (0,), ['linear'], options, lines.append, jobs=1)
    assert json.dumps(again) == json.dumps(result)
    costs = attention_study.costs_of(result)
    assert set(costs) == {('linear', what) for what in ('train', 'forward', 'dense')}
    costs['linear', 'train'].update(seconds=0.5, peak_mib=10.0)
    costs['linear', 'forward'].update(seconds=0.25, peak_mib=5.0, parameters=2_000_000, macs=8 * 10**9)
    costs['linear', 'dense'].update(seconds=0.5, peak_mib=10.0)
    result['scores']['linear']['classification'] = [80.0, 90.0]
    row = attention_study.study_table(result).splitlines()[2]
    assert row.startswith(
        '| linear, ReLU | 2.00 M | 1.00 G | 10 MiB / 5 MiB | 16 / 32 | 0.50 s | 10 MiB | 85.0 ± 7.1 % |'
    )
    assert attention_study.claims_table(result).count('\n') == 3
    written = attention_study.save(result, tmp_path / 'out' / 'table')
    names = {'table.json', 'table.md', 'table.png', 'table.svg', 'table_claims.png', 'table_claims.svg'}
    assert {path.name for path in written} == names
    assert json.loads(written[0].read_text())['scores'] == result['scores']
    (folder / 'score.json').write_text(json.dumps(dict(of='another config', value=0)))
    with pytest.raises(ValueError, match='holds a run of another config: remove it or name another --work-dir'):
        attention_study._run(run)


def test_the_docs_have_the_committed_run():
    root = TOOLS.parent
    result = json.loads((root / 'docs/benchmarks/attentions.json').read_text())
    tables = [attention_study.study_table(result), attention_study.claims_table(result)]
    assert (root / 'docs/benchmarks/attentions.md').read_text() == '\n\n'.join(tables) + '\n'
    assert all(table in (root / 'docs/attentions.md').read_text() for table in tables)


def test_every_attention_of_the_comparison_has_a_title_and_a_config():
    examples = {'efficient'}  # of docs, which other tests register
    assert set(attention_study.TITLES) - examples == set(pyramid_attentions()) - examples
    for name in pyramid_attentions():
        for task in attention_study.TASKS:
            attn = attention_study.config_of(name, task).model.backbone.attn
            mixtures = dict(classification=9, detection=20)[task]
            assert attn.get('num_mixtures', mixtures) == mixtures


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['--attentions', 'linear', 'linear'], 'attentions must be different ones of soft_pp, '),
        (['--attentions', 'reformer'], 'got reformer'),
        (['--seeds', '0'], '--seeds must be 1 or more; got 0'),
        (['--out', '/proc/nowhere/table'], "'/proc/nowhere' cannot be written: "),
    ],
)
def test_wrong_arguments_are_named_before_anything_runs(arguments, message, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, 'argv', ['compare_attention.py', '--work-dir', str(tmp_path), *arguments])
    with pytest.raises(SystemExit) as told:
        runpy.run_path(str(TOOLS / 'compare_attention.py'), run_name='__main__')
    assert message in capsys.readouterr().err + str(told.value)
