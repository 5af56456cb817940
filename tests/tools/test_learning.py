"""Learning compared on class folders: interrupted runs end as whole ones do, and tables tell what happened."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from studies import learning, linear_pictures
from studies.ablation import without_attention
from studies.learning import Recipe, layers_table, plot, rules_table, study, study_table
from studies.peers import MODELS

from mmsoft.layers import InLineAttention, SoftAttention

pytestmark = pytest.mark.slow
RECIPE = Recipe(size=32, epochs=2, batch=8, lr=3e-3)


class StopError(Exception):
    pass


@pytest.fixture(scope='module')
def pictures(tmp_path_factory):
    """Red and blue ones."""
    root, rng = tmp_path_factory.mktemp('pictures'), np.random.default_rng(0)
    for part, number in dict(train=12, val=4).items():
        for label, colour in enumerate(('red', 'blue')):
            (root / part / colour).mkdir(parents=True)
            for index in range(number):
                image = rng.integers(90, size=(32, 32, 3), dtype=np.uint8)
                image[..., 2 * label] += 160
                Image.fromarray(image).save(root / part / colour / f'{index}.png')
    return root


def test_an_interrupted_comparison_ends_as_a_whole_one(pictures, tmp_path):
    def stop(line: str) -> None:
        raise StopError(line)

    names = ['resnet18_half', 'soft_pp_quarter']
    with pytest.raises(StopError, match='epoch 1 of 2'):
        study(pictures, names[:1], [0], RECIPE, tmp_path / 'cut', say=stop)
    whole = study(pictures, names, [0, 1], RECIPE, tmp_path / 'whole', sizes=[48], say=lambda line: None)
    study(pictures, names[:1], [0], RECIPE, tmp_path / 'cut', say=lambda line: None)
    one, other = (
        torch.load(tmp_path / part / 'resnet18_half' / 'seed_0' / 'state.pth')['model'] for part in ('whole', 'cut')
    )
    assert all(torch.equal(one[name], other[name]) for name in one)

    first, second, *rows = study_table(whole, goal=50).splitlines()
    assert 'top-1 at 48' in first
    assert len(rows) == len(names)
    assert all(row.count('|') == first.count('|') == second.count('|') for row in rows)
    best = {name: sum(run['curve'][-1]['top1'] for run in runs) / 2 for name, runs in whole['runs'].items()}
    assert rows[0].startswith(f'| {max(best, key=best.get)} |')
    assert json.loads(json.dumps(whole))['runs']['resnet18_half'][0]['curve'][1]['epoch'] == 2
    assert all(path.stat().st_size > 1000 for path in plot(whole, tmp_path / 'curves'))

    with pytest.raises(ValueError, match='holds a run of another recipe: remove it or name another --work-dir'):
        study(pictures, names[:1], [0], Recipe(size=32, epochs=3, batch=8), tmp_path / 'whole')
    with pytest.raises(ValueError, match=r"--models knows soft_pp_tiny, .*; got 'resnet'"):
        study(pictures, ['resnet'], [0], RECIPE, tmp_path)
    with pytest.raises(ValueError, match='--batch is at most the number of pictures, 24; got 128'):
        learning.Pictures(pictures, Recipe())
    with pytest.raises(FileNotFoundError, match="has no folder 'train'"):
        learning.Pictures(tmp_path, RECIPE)


def test_what_a_file_has_is_not_trained_again(pictures, tmp_path):
    def stop(line: str) -> None:
        raise StopError(line)

    name, kept = 'soft_pp_quarter', tmp_path / 'docs' / 'learning.json'
    first = study(pictures, [name], [0], RECIPE, tmp_path / 'runs', [48], say=lambda line: None, kept=kept)
    assert study(pictures, [name], [0], RECIPE, tmp_path / 'other', [48], say=stop, kept=kept) == json.loads(
        json.dumps(first)
    )
    both = study(pictures, [name], [0, 1], RECIPE, tmp_path / 'runs', [48], say=lambda line: None, kept=kept)
    assert [run['seed'] for run in both['runs'][name]] == [0, 1]
    assert study_table(json.loads(kept.read_text()), goal=50) == study_table(both, goal=50)
    of_layers = first['runs'][name][0]['layers']
    assert len(of_layers) == RECIPE.epochs + 1, 'at the start and after each epoch'
    assert {'attention', 'local', 'near_zero', 'condition', 'grad_q', 'entropy'} < set(of_layers[0][0])
    looked = layers_table(first).splitlines()
    assert [line.split('|')[2].strip() for line in looked[2:]] == ['start', 'epoch 1', 'epoch 2']
    ratio = np.exp(np.mean([np.log(row['attention'] / row['local']) for row in of_layers[0] if row['local']]))
    assert float(looked[2].split('|')[3]) == pytest.approx(ratio, rel=0.05)
    rules = first['runs'][name][0]['rules']
    assert rules_table(both).count('\n') == 1 + len(rules)
    assert list(rules) == ['bounded', 'bounded, not scaled', 'growing']
    assert all(list(scores) == [48] for scores in rules.values())
    with pytest.raises(ValueError, match='holds runs of another recipe or of other pictures: name another --out'):
        study(pictures, [name], [0], Recipe(size=32, epochs=3, batch=8), tmp_path / 'runs', kept=kept)


@pytest.mark.parametrize('name', ['soft_pp_quarter near landmarks', 'inline_pvt_quarter'])
def test_attention_is_cut_out_and_put_back(name):
    torch.manual_seed(0)
    model, x = MODELS[name](5, 64).eval(), torch.rand(1, 3, 64, 64)
    whole = model(x)
    with without_attention(model) as count:
        alone = model(x)
        with torch.no_grad():  # queries then matter nowhere
            for layer in model.modules():
                if isinstance(layer, SoftAttention | InLineAttention):
                    layer.q.weight.zero_()
        assert torch.equal(model(x), alone)
    assert count == dict(soft=6, inline=8)[name.split('_')[0]]
    assert not torch.equal(whole, alone)
    assert not any({'_attend', 'forward'} & set(layer.__dict__) for layer in model.modules())
    with without_attention(MODELS['resnet18_half'](5, 64)) as count:
        assert not count


def test_starts_that_are_tried_change_what_they_say():
    def first(name: str) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return MODELS[name](5, 64).state_dict()

    for family, q in {'soft_pp_quarter': 'q.weight', 'inline_pvt_quarter': 'kv.weight'}.items():
        base, wide, quiet = (first(family + more) for more in ('', ' wide queries', ' quiet local'))
        assert torch.equal(wide[f'stages.0.blocks.0.attn.{q}'][:32], 4 * base[f'stages.0.blocks.0.attn.{q}'][:32])
        changed = {key for key in base if not torch.equal(base[key], quiet[key])}
        assert changed
        assert all(key.endswith('.local') or '.predictor.2.' in key for key in changed)
        assert not any(quiet[key].any() for key in changed)
    wide = first('inline_pvt_quarter wide queries')
    base = first('inline_pvt_quarter')
    assert torch.equal(wide['stages.0.blocks.0.attn.kv.weight'][32:], base['stages.0.blocks.0.attn.kv.weight'][32:])
    assert all(
        torch.equal(value, base)
        for value, base in zip(
            first('soft_pp_quarter pre-norm').values(), first('soft_pp_quarter').values(), strict=True
        )
    )


def test_models_of_a_class_are_of_one_size():
    """Backbones of 10 to 14 million parameters, and of a quarter of that."""
    for name, build in MODELS.items():
        millions = sum(p.numel() for p in build(50, 64).parameters()) / 1e6
        low, high = (2.5, 4.5) if any(part in name for part in ('quarter', 'half', 'b0', 'mobile')) else (10, 14)
        assert low < millions < high, (name, millions)


def test_a_classifier_of_pictures_becomes_linear_stage_by_stage(pictures, tmp_path):
    recipe, lines = Recipe(size=32, epochs=4, batch=8, lr=3e-3), []
    found = linear_pictures.study(pictures, [0], recipe, tmp_path, say=lines.append)
    assert list(found) == list(linear_pictures.ROWS)
    assert all(0 <= score <= 100 for (score,) in found.values())
    weights = [torch.load(tmp_path / f'pictures_0/{stage}.pth') for stage in ('copy', 'outputs', 'maps')]
    patches = [values['stages.0.embed.proj.weight'] for values in weights]
    assert torch.equal(patches[0], patches[1]), 'outputs of attentions teach attentions alone'
    assert not torch.equal(patches[0], patches[2])
    states = [torch.load(tmp_path / f'pictures_0/{row}/state.pth')['model'] for row in ('scratch', 'soft', 'soft_maps')]
    assert len({round(float(state['head.weight'].abs().sum()), 6) for state in states}) == 3, 'losses differ'
    said = len(lines)
    assert linear_pictures.study(pictures, [0], recipe, tmp_path, say=lines.append) == found
    assert not any('epoch' in line for line in lines[said:]), 'nothing is trained twice'
    assert linear_pictures.study_table(found).count('\n') == len(found) + 1
