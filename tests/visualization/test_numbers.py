"""Newton's convergence, spectra, receptive fields, colours, InLine's claims and the diagnosis, on what is known."""

import math

import numpy as np
import pytest
import torch
from backbones import CASES
from helpers import MINI
from studies.claims import local_kernels, near_share
from torch import nn

from mmsoft import SOFT, InLinePVT, SOFTClassifier
from mmsoft.layers import InLineAttention, SoftmaxAttention
from mmsoft.ops import gaussian_gram, newton_inverse
from mmsoft.ops.attention import landmark_matrices
from mmsoft.visualization import (
    claims,
    diagnose,
    feature_colours,
    field_sides,
    injectivity,
    locality,
    newton_convergence,
    pca_colours,
    receptive_fields,
    spectrum,
)
from mmsoft.visualization.claims import attention_weights, queries_and_keys
from mmsoft.visualization.looking import look
from mmsoft.visualization.newton import inverse_norms, newton_residuals

IMAGE = (1, 3, 96, 128)


@pytest.mark.parametrize('normalize', [False, True])
def test_residuals_are_those_of_the_operator(normalize):
    _, a, alpha = landmark_matrices(torch.randn(1, 2, 20, 8).double(), normalize)
    residuals = newton_residuals(a, alpha, 12)
    for steps in (1, 5, 12):
        x = newton_inverse(a, alpha, steps)
        norms = torch.linalg.matrix_norm(a @ x @ a - a, 2) / torch.linalg.matrix_norm(a, 2)
        assert torch.allclose(residuals[..., steps], norms, rtol=1e-6, atol=1e-12)
    assert (residuals.diff() <= 1e-12).all()


def test_convergence_is_by_stage_and_picture():
    model = SOFT(MINI)
    found = newton_convergence(model, [torch.randn(IMAGE), torch.randn(1, 3, 64, 64)], steps=7)
    assert {stage: values.shape for stage, values in found.items()} == {1: (2, 1, 8), 2: (2, 2, 8), 3: (2, 6, 8)}
    with pytest.raises(ValueError, match=r'SOFT has no SOFT or SOFT\+\+ attention in stage 4: nothing to invert'):
        newton_convergence(model, [torch.randn(IMAGE)], stages=[4])
    with pytest.raises(ValueError, match='there are no pictures'):
        newton_convergence(model, [])


def test_the_spectrum_is_that_of_the_gram_matrix():
    points = torch.randn(1, 2, 6, 8).double()
    a = gaussian_gram(points)[0]
    norms = inverse_norms(points, 40)
    assert torch.allclose(norms['exact'], 1 / torch.linalg.eigvalsh(a)[:, 0], rtol=1e-6)
    root = torch.diag_embed(a.sum(-1).rsqrt())
    normalized = torch.linalg.matrix_norm(root @ torch.linalg.inv(a) @ root, 2)
    assert torch.allclose(norms['exact_normalized'], normalized, rtol=1e-6)
    assert torch.allclose(norms['soft_pp'], normalized, rtol=1e-3)  # converged
    assert (norms['soft'] < norms['exact']).all()  # the ridge
    model = SOFT(MINI, num_landmarks=10)
    values, rows = spectrum(model, torch.randn(IMAGE), (4, 9, 12, 1000), stages=[1])  # 24 x 32 tokens, windows of 8
    assert sorted({row['landmarks'] for row in rows}) == [4, 9, 12]
    assert values['stages.0.blocks.0.attn'].shape == (1, 12)
    assert (np.diff(values['stages.0.blocks.0.attn']) <= 0).all()
    assert model.stages[0].blocks[0].attn.landmarks.num_landmarks == 10


def test_a_field_is_where_a_pixel_sees():
    class Convolutions(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
            for conv in (self.first, self.second):
                nn.init.constant_(conv.weight, 1.0)

        def forward(self, x):
            first = self.first(x)
            return first, self.second(first)

    fields = receptive_fields(Convolutions(), [torch.ones(1, 3, 9, 9), 2 * torch.ones(1, 3, 9, 9)])
    for stage, side in ((1, 3), (2, 5)):
        rows, columns = np.nonzero(fields[stage])
        assert (rows.min(), rows.max()) == (columns.min(), columns.max()) == (4 - stage, 4 + stage)
        assert len(rows) == side**2
        assert field_sides(fields[stage], (1.0,))[1.0] * 9 == pytest.approx(side - 1)
    with pytest.raises(ValueError, match=r'pictures of one size as the model sees them; got \[\(8, 8\), \(9, 9\)\]'):
        receptive_fields(Convolutions(), [torch.ones(1, 3, 9, 9), torch.ones(1, 3, 8, 8)])
    with pytest.raises(ValueError, match='stage 3 gives no map; those of the model are 1 to 2'):
        receptive_fields(Convolutions(), [torch.ones(1, 3, 9, 9)], [3])
    with pytest.raises(ValueError, match='Flatten gives no maps'):
        receptive_fields(nn.Flatten(), [torch.ones(1, 3, 9, 9)])


@pytest.mark.parametrize('case', ['soft_pp', 'inline_pvt', 'inline_deit', 'inline_cswin', 'own_family'])
def test_every_stage_of_every_family_has_a_field_and_colours(case):
    model, image = CASES[case].build(), torch.randn(IMAGE)
    fields = receptive_fields(model, [image])
    assert list(fields) == [1, 2, 3, 4]
    assert all(field.shape == IMAGE[2:] and field.max() > 0 for field in fields.values())
    assert feature_colours(model, [image])[2][0].shape == (12, 16, 3)


def test_colours_are_main_components():
    """What differs most is the first colour, wherever it lies among the channels, in all pictures alike."""
    maps = [torch.randn(5, 6, 7), torch.randn(5, 4, 4)]
    for m in maps:
        m[3] *= 20
    colours = pca_colours(maps)
    assert [c.shape for c in colours] == [(6, 7, 3), (4, 4, 3)]
    red = np.concatenate([c[..., 0].ravel() for c in colours])
    assert np.corrcoef(red, torch.cat([m[3].flatten() for m in maps]))[0, 1] > 0.99
    with pytest.raises(ValueError, match='maps of at least 3 channels; got 2'):
        pca_colours([torch.randn(2, 4, 4)])


def test_linear_attention_is_not_injective_and_inline_is():
    torch.manual_seed(1)
    image = torch.randn(1, 3, 64, 64)
    linear = SOFT(MINI, attn=dict(type='linear', kernel='relu'))
    found = injectivity(linear, [image, image], stages=[1, 3])
    assert found['layers'] == ['stages.0.blocks.0.attn', 'stages.2.blocks.0.attn', 'stages.2.blocks.1.attn']
    assert found['doubled'] == [1, 1, 1]
    assert np.max(found['scaled']) < 1e-3
    assert found['confusions'][0] == found['confusions'][1]
    assert found['pairs'] == 256 * 255 // 2 + 2 * 3 * 16 * 15 // 2
    assert injectivity(linear, [image], stages=[1], as_inline=True)['doubled'] == [0]
    with pytest.raises(ValueError, match='SOFT has no layer of InLine, linear or softmax attention over all tokens'):
        injectivity(SOFT(MINI), [image], stages=[1])


def test_injectivity_is_of_small_maps(monkeypatch):
    monkeypatch.setattr(claims, 'MOST_TOKENS', 100)
    with pytest.raises(ValueError, match=r'stages\.0\.blocks\.0\.attn has 256 tokens, of at most 100'):
        injectivity(InLinePVT(MINI), [torch.randn(1, 3, 64, 64)])


def test_locality_agrees_with_whole_matrices():
    """The study sums whole matrices and all channels' kernels; here rows and a few of them."""
    image = torch.randn(1, 3, 32, 32)
    model = InLinePVT(MINI)
    for name, parameter in model.named_parameters():
        if 'predictor' in name:
            parameter.data.mul_(3)
    found = {row['layer']: row for row in locality(model, [image])}
    for each in look(model, image):
        with torch.no_grad():
            weights = attention_weights(each.layer, *queries_and_keys(each.layer, each.x))
            exact = near_share(weights, local_kernels(each.layer, each.x), each.grid)
        row = found[each.name]
        if math.prod(each.grid) <= 32:  # all queries are looked at
            assert row['alone'] == pytest.approx(near_share(weights, None, each.grid), abs=1e-5)
        assert row['near'] == pytest.approx(exact, abs=0.1)
        assert row['near'] > row['uniform'] - 1e-6


def test_the_diagnosis_sums_up_and_leaves_no_trace():
    model, image = SOFTClassifier(MINI, num_classes=5, drop_path_rate=0.5).train(), torch.randn(1, 3, 64, 64)
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    rows = diagnose(model, image, lambda: model(image).logsumexp(-1).sum() + torch.rand(()))
    assert [row['stage'] for row in rows] == [1, 2, 3, 3, 4]
    soft = {'landmarks', 'rank', 'condition', 'newton_residual', 'near_one', 'near_zero', 'grad_landmarks'}
    always = {'residual', 'attention', 'local', 'added', 'mlp', 'entropy', 'grad_q', 'grad_v'}
    for row in rows:
        assert always <= row.keys()
        assert (soft <= row.keys()) == (row['stage'] < 4)
        assert all(math.isfinite(value) for value in row.values() if isinstance(value, float))
        assert 0 <= row['entropy'] <= 1
        assert row['grad_v'] > 0
        assert row['added'] > 0
    assert rows[0]['landmarks'] == 4
    assert 1 <= rows[0]['rank'] <= 4
    assert rows[-1]['local'] == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_diagnosis_tells_sizes_and_gradients_of_known_layers():
    model, image = SOFT(MINI), torch.randn(1, 3, 64, 64)
    layer = model.stages[0].blocks[0].attn
    first = diagnose(model, image, stages=[1])[0]
    layer.local.data.mul_(10)
    assert diagnose(model, image, stages=[1])[0]['local'] == pytest.approx(10 * first['local'], rel=1e-4)
    layer.proj.weight.data.zero_()  # nothing of it is seen
    dead = diagnose(model, image, stages=[1])[0]
    assert (dead['grad_v'], dead['grad_q'], dead['grad_landmarks']) == (0, 0, 0)
    assert dead['added'] == 0
    layer.q.weight.data.zero_()  # all queries alike
    alike = diagnose(model, image, stages=[1])[0]
    assert alike['rank'] == 1
    assert alike['entropy'] == pytest.approx(1, abs=1e-6)
    kinds = [row['attention_type'] for row in diagnose(CASES['soft_mixed'].build(), image)]
    assert kinds[0] == 'LinformerAttention'
    for case in ('inline_swin', 'inline_cswin', 'inline_deit'):
        for row in diagnose(CASES[case].build(), image):
            assert {'grad_q', 'grad_k', 'grad_v', 'entropy', 'residual', 'mlp'} <= row.keys()
    assert {SoftmaxAttention.__name__, InLineAttention.__name__} & set(kinds) == set()
