"""The check of mmdet's and mmseg's zoos: what runs is told apart from what fails, dies, hangs or finds other values."""

import json
import os
import socket
import subprocess
import sys
import time

import pytest
from helpers import ROOT, TOOLS


@pytest.fixture
def zoo(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    from zoo import configs, five_tools, method, report, runs

    return dict(configs=configs, five_tools=five_tools, method=method, report=report, runs=runs)


@pytest.mark.slow
def test_a_method_of_each_zoo_runs_and_an_invented_one_fails(tmp_path):
    table = tmp_path / 'zoo.md'
    names = ('centernet', 'fastscnn', 'invented/method')
    run = subprocess.run(
        [sys.executable, TOOLS / 'check_zoo.py', '--out', table, '--only', *names], capture_output=True, text=True
    )
    assert run.returncode == 1, run.stderr
    assert 'mmdet: 1 of 2 do all three (1 build, 1 train, 1 predict). mmseg: 1 of 1 do all three' in run.stdout
    rows = json.loads(table.with_suffix('.json').read_text())['rows']
    centernet, invented, fastscnn = (rows[f'mmdet/{names[0]}'], rows[f'mmdet/{names[2]}'], rows[f'mmseg/{names[1]}'])
    assert centernet['operators'] == {'modulated_deform_conv_backward': 3, 'modulated_deform_conv_forward': 6}
    assert centernet['loss'] > 0
    assert centernet['found'] > 0
    assert fastscnn['gradient'] > 0
    assert invented['errors'] == {
        'builds': "FileNotFoundError: [Errno 2] No such file or directory: 'mmdet/.mim/configs/invented/method.py'"
    }
    assert '| fastscnn | fast_scnn_8xb4-160k_cityscapes-512x1024 | yes | yes | yes |' in table.read_text()


@pytest.mark.slow
def test_a_method_goes_through_all_tools_and_one_without_such_pictures_says_why(tmp_path):
    table = tmp_path / 'tools.md'
    run = subprocess.run(
        [sys.executable, TOOLS / 'check_zoo.py', '--tools', '--out', table, '--only', 'fastscnn', 'bytetrack', 'x/y'],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 1, run.stderr
    rows = json.loads(table.with_suffix('.json').read_text())['rows']
    assert '| fastscnn | fast_scnn_8xb4-160k_cityscapes-512x1024 | yes | yes | yes | yes | yes |' in table.read_text()
    assert 'mmseg: 1 of 1 do all five (1 train, 1 test, 1 predict, 1 browse, 1 get_flops)' in run.stdout
    assert '--data' in rows['mmdet/bytetrack']['errors']['train']
    assert 'FileNotFoundError' in rows['mmdet/x/y']['errors']['train']


@pytest.mark.slow
@pytest.mark.parametrize(
    ('fate', 'reason'), [(lambda *_: os._exit(3), 'ended with 3'), (lambda *_: time.sleep(60), 'no end after 0.5 s')]
)
def test_a_method_that_dies_or_hangs_loses_only_itself(zoo, monkeypatch, fate, reason):
    monkeypatch.setattr(zoo['method'], 'check', fate)
    row = zoo['runs'].run_apart(zoo['configs'].Method('mmdet', 'x', 'x.py'), 0.5, 1)
    assert reason in row['errors']['builds']
    assert not zoo['report'].works(row)


def test_a_step_is_tried_unless_what_it_needs_fails(zoo, monkeypatch):
    """Without data a method still predicts and is counted."""
    monkeypatch.setattr(socket, 'getaddrinfo', socket.getaddrinfo)  # which is taken away while methods run

    def fail():
        raise ValueError('no data')

    row = zoo['method'].try_steps(dict(train=fail, test=dict, predict=dict), dict(test='train'))
    assert (row['train'], row['test'], row['predict']) == (False, False, True)
    assert row['errors'] == dict(train='ValueError: no data')


def test_the_page_of_all_tools_is_made_of_its_rows_and_each_no_has_a_reason(zoo):
    found, report = json.loads((ROOT / 'docs' / 'zoo_tools.json').read_text()), zoo['report']
    configs, page = zoo['configs'], (ROOT / 'docs' / 'zoo_tools.md').read_text()
    assert page == report.markdown(found, None, configs.SIDE, configs.PROPOSALS, zoo['five_tools'].PAGE)
    assert len(found['rows']) > 170
    for key, row in found['rows'].items():
        assert report.works(row) or row['errors'], key
        for error in row['errors'].values():
            assert report.reason(error) != error, (key, error)


def test_errors_name_no_folder_of_the_machine(zoo):
    told = zoo['method'].without_folders
    assert told("see '/tmp/run/x.json', of /usr/lib/python/site-packages/mmdet/a.py") == "see 'x.json', of mmdet/a.py"
    assert told('1/2 of https://example.org/a/b and a/b') == '1/2 of https://example.org/a/b and a/b'


def test_a_small_config_stands_for_a_folder_unless_it_holds_bases(zoo):
    names = ('common', 'faster_rcnn', 'psanet', 'retinanet', 'yolo')
    found = {entry.name: entry.config for lib in ('mmdet', 'mmseg') for entry in zoo['configs'].methods(lib, names)}
    assert found == {
        'common': '',
        'faster_rcnn': 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
        'retinanet': 'retinanet/retinanet_r18_fpn_1x_coco.py',
        'yolo': 'yolo/yolov3_d53_8xb8-320-273e_coco.py',
        'psanet': 'psanet/psanet_r50-d8_4xb2-40k_cityscapes-512x1024.py',
    }


def test_rows_of_two_stacks_are_compared(zoo):
    here = dict(builds=True, trains=True, predicts=True, loss=2.0, gradient=1.0)
    differences = zoo['report'].differences
    assert differences(here, here | dict(loss=2.0001)) == []
    assert differences(here, here | dict(trains=False, loss=None)) == ['trains yes, there no']
    assert differences(here, here | dict(gradient=1.1)) == ['gradient 1, there 1.1']
    assert differences(here, None) == ['was not run there']
    fails = here | dict(trains=False)
    assert zoo['report'].any_fails(['x'], dict(rows=dict(x=fails)), None)
    assert zoo['report'].any_fails(['x'], dict(rows=dict(x=fails)), dict(rows=dict(x=here)))
    assert not zoo['report'].any_fails(['x'], dict(rows=dict(x=fails)), dict(rows=dict(x=fails)))


def test_a_table_has_no_column_that_is_empty_everywhere(zoo):
    row = dict(builds=True, trains=True, predicts=True, loss=2.0, config='a/b.py', operators=[], errors={})
    here, differs = dict(rows={'mmseg/a': row}), dict(rows={'mmseg/a': row | dict(loss=3.0)})
    table = zoo['report']._table
    assert 'compared' not in table(here, here, 'mmseg')
    assert 'all of these do the same' in table(here, here, 'mmseg')
    assert '| a | b | yes | yes | yes |  | loss 2, there 3 |' in table(here, differs, 'mmseg')
    assert 'With the other stack' not in table(here, None, 'mmseg')
