"""Measuring tools, run for real at small sizes."""

import torch

from mmsoft.engine.backward_study import summarise, train_pair
from mmsoft.engine.benchmark import forward_case, peak_memory, time_interleaved


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


def test_the_benchmark_times_and_weighs_ours_and_the_peer():
    cases = {name: forward_case(name, (64, 96)) for name in ('soft_pp_tiny', 'swin_tiny')}
    seconds = time_interleaved(cases, rounds=2)
    assert all(len(values) == 2 and min(values) > 0 for values in seconds.values())
    small, large = (
        peak_memory('soft_pp_tiny', size, torch.get_num_threads(), samples=1) for size in [(64, 64), (512, 512)]
    )
    assert 0 <= small < large
    assert large > 10  # MiB: the first stage alone holds 16,384 tokens of 64 floats several times
