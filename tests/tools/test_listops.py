"""ListOps by its rule, and trainings that resume to the same weights."""

import random
import runpy
import sys

import pytest
import torch
from helpers import TOOLS
from studies import listops


def value_of(words):
    """A second reading of a list, by a stack."""
    stack = []
    for word in words:
        if word != ']':
            stack.append(word)
            continue
        values = []
        while isinstance(stack[-1], int) or stack[-1].isdigit():
            values.append(int(stack.pop()))
        operator, ordered = stack.pop(), sorted(values)
        middle = ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]
        stack.append({'[MIN': ordered[0], '[MAX': ordered[-1], '[MED': middle // 2, '[SM': sum(values) % 10}[operator])
    (value,) = stack
    return value


def test_lists_follow_the_rule():
    rng = random.Random(0)
    assert value_of(['[MAX', '2', '9', '[MIN', '4', '7', ']', '0', ']']) == 9
    for _ in range(50):
        words, value = listops.draw_tree(rng)
        assert value == value_of(words)
    tokens, answers = listops.draw_set(6, (20, 60), seed=3)
    words = {number: word for word, number in listops.VOCABULARY.items()}
    for row, answer in zip(tokens.tolist(), answers.tolist(), strict=True):
        kept = [words[token] for token in row if token]
        assert 20 < len(kept) < 60
        assert value_of(kept) == answer
    assert all(torch.equal(a, b) for a, b in zip((tokens, answers), listops.draw_set(6, (20, 60), 3), strict=True))


@pytest.mark.parametrize('name', listops.ATTENTIONS)
def test_padding_and_every_parameter_count(name):
    torch.manual_seed(0)
    model = listops.Reader(listops.ATTENTIONS[name], 64)
    tokens, answers = listops.draw_set(4, (20, 64), seed=0)
    torch.nn.functional.cross_entropy(model(tokens), answers).backward()
    assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_training_resumes_to_the_same_weights(tmp_path):
    options = dict(seed=0, batch=4, sizes=(16, 8), lengths=(20, 64))
    for name in ('whole', 'parts'):
        (tmp_path / name).mkdir()
    whole = listops.train('soft_pp_bounded', tmp_path / 'whole', 4, **options)
    listops.train('soft_pp_bounded', tmp_path / 'parts', 2, **options)
    parts = listops.train('soft_pp_bounded', tmp_path / 'parts', 4, **options)
    assert parts['steps'] == whole['steps'] == 4
    states = [torch.load(tmp_path / name / 'soft_pp_bounded_0.pth', weights_only=True) for name in ('whole', 'parts')]
    for key, value in states[0]['model'].items():
        assert torch.equal(value, states[1]['model'][key]), key
    with pytest.raises(ValueError, match='is of another run'):
        listops.train('soft_pp_bounded', tmp_path / 'parts', 4, **{**options, 'batch': 8})
    assert listops.table([whole]).splitlines()[2].startswith('| soft_pp_bounded | 4 of 4 | ')
    other = listops.train('inline', tmp_path / 'parts', 1, **options)
    assert listops.save([whole], tmp_path / 'out') == [whole]
    assert listops.save([other], tmp_path / 'out') == [whole, other], 'rows of other attentions stay'
    assert listops.save([dict(whole, steps=8)], tmp_path / 'out') == [dict(whole, steps=8), other]
    assert (tmp_path / 'out.md').read_text().count('\n') == 4


def test_wrong_arguments_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, 'argv', ['compare_listops.py', '--lengths', '60', '20', '--work-dir', str(tmp_path)])
    with pytest.raises(SystemExit):
        runpy.run_path(str(TOOLS / 'compare_listops.py'), run_name='__main__')
    assert '--lengths must be two numbers from 10, at least 11 apart; got 60 20' in capsys.readouterr().err
