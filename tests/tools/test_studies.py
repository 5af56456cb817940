"""The studies of sizes and of Newton's gradients, run for real at small sizes."""

import pytest
from small_runs import losses
from studies import exports
from studies import linear as linear_study
from studies import sizes as size_study
from studies.backward import summarise, train_pair
from studies.once import train_once

import mmsoft
from mmsoft.engine import demo
from mmsoft.engine.config import load_config

pytestmark = pytest.mark.slow


def test_the_study_trains_both_gradients_and_sums_them_up():
    records = train_pair('soft_pp', seed=0, steps=5, batch=2, test_images=4)
    assert [record['backward'] for record in records] == ['unrolled', 'closed']
    for record in records:
        assert 0 < record['loss'] < 10
        assert 0 <= record['accuracy'] <= 1
        assert 0 <= record['residual']['median'] <= record['residual']['largest'] < 1
    assert records[0]['loss'] != records[1]['loss']  # the gradients differ
    table = summarise(records).splitlines()
    assert len(table) == 4
    assert ' 1.00 x ' in ''.join(table)


def test_the_study_of_sizes_covers_both_attentions_and_rules(tmp_path, monkeypatch):
    monkeypatch.setenv('MMSOFT_DEMO_DATA', str(tmp_path / 'data'))
    for name, value in dict(IMAGES=10, VAL_IMAGES=4, CLASS_SCENES=(96, 128)).items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setitem(demo.EPOCHS, 'classes', 2)
    monkeypatch.setitem(demo.BATCH, 'classes', 8)
    found = size_study.study(tmp_path / 'runs')
    sizes = ['96', '160', '224']
    assert list(found.top1) == ['soft, bounded', 'soft, growing', 'soft_pp, bounded', 'soft_pp, growing']
    for name, row in found.growth.items():
        assert list(row) == list(found.top1[name]) == sizes
        assert row['96'] == [1.0]
    assert found.growth['soft, growing'] != found.growth['soft, bounded']
    assert size_study.study_table(found).count('\n') == 5
    with pytest.raises(ValueError, match='holds a run of another config'):
        train_once(load_config(mmsoft.config_path('soft_small_300e_in1k')), tmp_path / 'runs/soft_tiny_0', 0)


def test_the_study_of_linear_models_scores_teacher_stages_and_scratch(tmp_path, monkeypatch):
    monkeypatch.setenv('MMSOFT_DEMO_DATA', str(tmp_path / 'data'))
    for name, value in dict(IMAGES=12, VAL_IMAGES=4).items():
        monkeypatch.setattr(demo, name, value)
    monkeypatch.setattr(linear_study, 'STEPS_AN_EPOCH', 3)
    found = linear_study.study(tmp_path / 'runs', [0], ['labels'], epochs=4)
    assert list(found['labels']) == list(linear_study.MODELS)
    scores = [float(score) for (score,) in found['labels'].values()]
    assert all(0 <= score < 100 for score in scores), 'per cent, of twelve steps'
    assert len(set(scores)) > 2, 'they are of different models'
    steps = [len(losses(tmp_path / 'runs/labels_0/linear' / stage)) for stage in ('outputs', 'maps')]
    assert steps == [1, 2]  # a quarter of the teacher's, together
    rows = linear_study.study_table(dict(labels=dict(found['labels'], teacher=[40.0], copy=[20.0]))).splitlines()
    assert ['(100 %)' in rows[2], '(50 %)' in rows[3], rows[5].split()[1]] == [True, True, 'linear']
    assert linear_study.study(tmp_path / 'runs', [0], ['labels'], epochs=4) == found  # nothing is done twice


def test_the_study_of_exports_tells_what_files_lose():
    points = {'checkpoint': [40.0, 30.0], 'fp32, onnxruntime': [40.0, 29.5], 'int8, openvino': [38.25, 30.0]}
    table = exports.points_table(
        {'mask_rcnn_soft_pp_tiny_1x_coco': points, 'soft_pp_tiny_300e_in1k': {'checkpoint': [9]}}
    )
    assert '| model | checkpoint | fp32, onnxruntime | int8, openvino |' in table
    assert '| mask_rcnn, segm_mAP | 30.00 | -0.50 | +0.00 |' in table
    assert '| classifier, top1 | 9.00 |  |  |' in table, 'blank is what was not measured'
    costs = dict(swin_tiny=[[2.0, 900], [3.0, 800]], soft_pp_small=[[1.0, 400], [2.0, 600]])
    table = exports.costs_table({'opened': costs}, 2)
    assert '| soft_pp_small | 1.00 | 400 | 0.50 of its time, 0.50 of its memory |' in table
