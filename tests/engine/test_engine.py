"""Measuring tools, run for real at small sizes."""

from mmsoft.engine.backward_study import summarise, train_pair


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
