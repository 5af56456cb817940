"""Rows of attention matrices, compared with the matrices themselves and with what layers do."""

import cv2
import numpy as np
import pytest
import torch
from backbones import CASES
from helpers import MINI, relative_error
from matplotlib.backends.backend_agg import FigureCanvasAgg

from mmsoft import SOFT
from mmsoft.layers import SoftmaxAttention
from mmsoft.ops import softmax_free_attention_reference
from mmsoft.visualization import attention_maps, attention_rows, figures
from mmsoft.visualization.looking import heads_of, hooked, look, values_of

WITHOUT = ('own_family',)  # convolutions alone
SIZES = dict(inline_swin=224, inline_cswin=224)  # whole windows: the bias is a value of padding as well


def outputs_and_values(seen):
    """What a layer hands to its last projection, and its values, (N, h, d) each."""
    found = {}

    def keep(module, inputs, output):
        if module is seen.layer.proj:
            return inputs[0]
        width = inputs[0].shape[-1]
        output = output[..., :-width] if output.shape[-1] == 4 * width else output
        found['v'] = output[..., -width:]
        return None

    with hooked((seen.layer.proj, keep), (values_of(seen.layer), keep)), torch.no_grad():
        found['y'] = seen.layer(seen.x, seen.grid, *seen.more)  # in the tokens' order
        values_of(seen.layer)(seen.x)  # of the tokens in their order, not in windows
    return (part[0].unflatten(-1, (heads_of(seen.layer), -1)) for part in (found['y'], found['v']))


@pytest.mark.parametrize('case', [case for case in CASES if case not in WITHOUT] + ['polaformer'])
def test_rows_times_values_are_what_every_attention_gives(case):
    model = (SOFT(MINI, attn='polaformer') if case == 'polaformer' else CASES[case].build()).eval()
    for name, parameter in model.named_parameters():  # rows that are far from uniform; no bias beside the values
        parameter.data.mul_(3 if parameter.dim() > 1 else not name.endswith(('lepe.bias', 'dwc.bias')))
    for name, layer in model.named_modules():
        if name.endswith(('.qkvo', '.qg')):  # open gates
            width = layer.in_features
            layer.weight.data[-width:], layer.bias.data[-width:] = 0, 1
    checked = 0
    for seen in look(model, torch.randn(1, 3, SIZES.get(case, 96), SIZES.get(case, 128))):
        count, channel = seen.x.shape[1], 3
        picked = [0, count // 2, count - 1]
        rows = attention_rows(seen.layer, seen.x, seen.grid, picked, *seen.more, local=True, channel=channel)
        assert rows.shape == (3, heads_of(seen.layer), count)
        y, v = outputs_and_values(seen)
        if isinstance(seen.layer, SoftmaxAttention) and seen.layer.reduces:
            assert torch.allclose(rows.sum(-1), torch.ones(rows.shape[:2]), atol=1e-5)
            assert (rows >= 0).all()
        else:
            found = torch.einsum('qhn,nh->qh', rows, v[..., channel])
            assert relative_error(found, y[picked][..., channel]) < 1e-4, seen.name
        checked += 1
    assert checked == len([name for name, _ in model.named_modules() if name.endswith('.attn')])


@pytest.mark.parametrize('normalize', [False, True])
def test_rows_are_those_of_the_papers_matrix(normalize):
    model = SOFT(MINI, attn='soft_pp' if normalize else 'soft').eval()
    seen = look(model, torch.randn(1, 3, 96, 128), [2])[0]
    layer, scale = seen.layer, seen.layer.head_dim**-0.25
    with torch.no_grad():
        q = layer.q(seen.x)
        unit = torch.eye(seen.x.shape[1]).expand(1, layer.num_heads, -1, -1)
        landmarks = layer.landmarks(q, seen.grid, scale)
        matrix = softmax_free_attention_reference(layer._split(q), landmarks, unit, normalize=normalize, scale=scale)
    rows = attention_rows(layer, seen.x, seen.grid, [5, 100])
    assert relative_error(rows, matrix[0][:, [5, 100]].transpose(0, 1)) < 1e-3


def test_a_map_is_where_its_query_is():
    """A local term that copies its token is the largest weight there, padding or not."""
    model = SOFT(MINI).eval()
    local = model.stages[0].blocks[0].attn.local.data.zero_()
    local[:, :, 4, 4] = 1e3
    image, queries = torch.randn(1, 3, 64, 96), [(0, 0), (0.99, 0.3), (1, 1)]
    whole = attention_maps(model, image, queries, [1], local=True)
    assert [m.token for m in whole] == [(0, 0), (4, 23), (15, 23)]
    part = attention_maps(model, image, queries, [1], local=True, shown=(32, 48))
    assert [m.token for m in part] == [(0, 0), (2, 11), (8, 12)]
    for found in (*whole, *part):
        assert np.unravel_index(found.head().argmax(), found.head().shape) == found.token
        assert found.weights.shape == (1, 16, 24)
    alone = attention_maps(model, image, queries, [1])[0]
    assert abs(alone.head()[0, 0] - whole[0].head()[0, 0] + 1e3) < 1


def test_looking_leaves_no_trace():
    model = SOFT(MINI, drop_path_rate=0.3).train()
    before, state = {k: v.clone() for k, v in model.state_dict().items()}, torch.get_rng_state()
    modes = [module.training for module in model.modules()]
    first, again = (attention_maps(model, torch.ones(1, 3, 64, 64), stages=[3]) for _ in range(2))
    assert np.array_equal(first[0].weights, again[0].weights)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_landmarks_are_where_the_rule_puts_them():
    image = torch.randn(1, 3, 200, 336)  # 50 x 84 tokens in stage 1, windows of 8 x 8
    growing = attention_maps(SOFT(MINI, num_landmarks=None), image, stages=[1])[0].landmarks
    assert len(growing) == 6 * 10
    assert growing[0] == pytest.approx((4 / 84, 4 / 50))
    bounded = attention_maps(SOFT(MINI), image, stages=[1])[0].landmarks
    assert len(bounded) == 5 * 9
    assert bounded[0] == pytest.approx((1 / 18, 1 / 10))
    first = attention_maps(SOFT(MINI, landmark_sampling='first'), image, stages=[1])[0].landmarks
    assert first[1] == pytest.approx((1.5 / 84, 0.5 / 50))


def test_faults_are_told_in_a_sentence():
    model, image = SOFT(MINI), torch.randn(1, 3, 64, 64)
    with pytest.raises(ValueError, match=r'query 1\.5 0 is outside of the picture: both are shares of it'):
        attention_maps(model, image, [(1.5, 0)])
    with pytest.raises(ValueError, match='stage 5 has no attention; those of the model are 1, 2, 3, 4'):
        attention_maps(model, image, stages=[5])
    with pytest.raises(ValueError, match=r'head 3: layer stages\.1\.blocks\.0\.attn has 2, which count from 1'):
        attention_maps(model, image, stages=[2])[0].head(3)
    with pytest.raises(ValueError, match='Sequential has no attention that can be looked at'):
        attention_maps(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3)), image)
    seen = look(model, image, [3])[0]
    with pytest.raises(ValueError, match='query 99 is none of 16 tokens'):
        attention_rows(seen.layer, seen.x, seen.grid, [99])


def test_a_title_of_several_lines_is_whole(tmp_path):
    maps = attention_maps(SOFT(MINI).eval(), torch.randn(1, 3, 64, 64), [(0.5, 0.5)])
    row = figures.Panels(
        'retinanet_soft_pp_small_1x_coco, start values\n0.5 0.5', np.zeros((64, 64, 3), np.uint8), (64, 64), maps
    )
    figure = figures.attention_figure([row])
    assert figure.axes[0].get_title().split('\n')[0] == 'retinanet_soft_pp_small_1x_coco, start'
    figures.save_figure(figure, tmp_path / 'shown')
    shown = cv2.imread(str(tmp_path / 'shown.png'))
    assert all((border == 255).all() for border in (shown[0], shown[-1], shown[:, 0], shown[:, -1]))


def test_no_legend_covers_lines():
    """Of the norms, whose lines fill their panel; names of models and kinds of lines stand once."""
    norms = dict(exact=9.0, exact_normalized=3.0, soft=2.0, soft_pp=1.0)
    rows = [dict(layer='stages.1.blocks.0.attn', landmarks=count, **norms) for count in (9, 400)]
    spectrum = figures.spectrum_figure({rows[0]['layer']: np.ones((2, 9))}, rows)
    layers = [dict(near=0.9, alone=0.5, uniform=0.1)] * 2
    locality = figures.locality_figure(dict.fromkeys(('a_long_name_of_a_config', 'another_long_name'), layers))
    for figure, panel in ((spectrum, spectrum.axes[-1]), (locality, locality.axes[0])):
        FigureCanvasAgg(figure).draw()
        (legend,) = figure.legends
        assert panel.get_legend() is None
        assert not legend.get_window_extent().overlaps(panel.get_window_extent())
        texts = [text.get_text() for text in legend.get_texts()]
        assert len(texts) == len(set(texts)) <= 5
