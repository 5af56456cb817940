"""SOFT's own: counted cost, landmarks, short cuts, options; test_every_backbone has what holds for all models."""

import pytest
import torch
from backbones import OnGrid
from helpers import MINI, relative_error
from torch import nn

from mmsoft.engine.complexity import count_macs
from mmsoft.models import ARCHS, SOFT, SOFTClassifier
from mmsoft.ops import convolutions, slices

# Million parameters of the classifier (1000 classes) and of the backbone; giga multiply-adds at 224 x 224.
PARAMETERS = {
    'tiny': (13.069056, 12.555032),
    'small': (28.378198, 27.607662),
    'medium': (49.579794, 48.809258),
    'large': (87.289408, 86.262360),
    'small_v1': (38.858462, 38.344438),
    'medium_v1': (45.812707, 45.298683),
    'large_v1': (64.700646, 64.186622),
    'huge_v1': (87.108273, 86.594249),
}
MACS = {
    'tiny': 2.115952,
    'small': 4.848740,
    'medium': 9.924058,
    'large': 16.786414,
    'small_v1': 7.397023,
    'medium_v1': 8.681432,
    'large_v1': 13.180590,
    'huge_v1': 18.655931,
}


def mini(**options):
    return SOFT(MINI, drop_path_rate=options.pop('drop_path_rate', 0.0), **options)


def ceil_sizes(height, width):
    return [(-(-height // s), -(-width // s)) for s in (4, 8, 16, 32)]


@pytest.mark.parametrize('arch', ARCHS)
def test_parameter_counts_are_pinned(arch):
    with torch.device('meta'):
        classifier = SOFTClassifier(arch)
        backbone = SOFT(arch)
    counts = [sum(p.numel() for p in model.parameters()) / 1e6 for model in (classifier, backbone)]
    assert counts == pytest.approx(PARAMETERS[arch], abs=1e-6)
    assert set(backbone.state_dict()) == {
        name for name in classifier.state_dict() if not name.startswith(('head.', 'cls_'))
    }


@pytest.mark.parametrize('arch', MACS)
def test_multiply_adds_are_pinned(arch):
    with torch.device('meta'):  # shapes are enough to count
        model = SOFTClassifier(arch)
    assert count_macs(model, 1, 3, 224, 224) / 1e9 == pytest.approx(MACS[arch], abs=1e-5)


def test_the_counter_sees_newton_and_fused_attention():
    without = count_macs(mini(newton_iters=1), 1, 3, 224, 224)
    steps = 19 * 2 * 49**3 * (1 * 1 + 2 * 1 + 3 * 2)  # two products a step, for every head of every layer
    assert count_macs(mini(newton_iters=20), 1, 3, 224, 224) - without == steps
    with torch.device('meta'):
        assert count_macs(mini(newton_iters=1), 1, 3, 224, 224) == without
    stage4 = mini().stages[3].blocks[0].attn
    tokens = torch.zeros(1, 49, 64)
    assert count_macs(OnGrid(stage4, (7, 7)), *tokens.shape) == 49 * 64 * 64 * 4 + 2 * 49 * 49 * 64


@pytest.mark.parametrize('arch', ['tiny', 'small'])
def test_cost_is_linear_in_pixels(arch):
    model = SOFT(arch)
    with torch.device('meta'):
        model = model.to('meta')
        cost = {size: count_macs(model, 1, 3, *size) / (size[0] * size[1]) for size in [(448, 448), (1600, 2688)]}
    assert cost[1600, 2688] == pytest.approx(cost[448, 448], rel=0.05)


@pytest.mark.parametrize('size', [(33, 65), (63, 32), (97, 161), (224, 224)])
def test_tiling_embeddings_take_any_size(size):
    model = mini(overlap=False).eval()
    maps = model(torch.randn(2, 3, *size))
    assert [tuple(x.shape) for x in maps] == [
        (2, dim, *hw) for dim, hw in zip(MINI['dims'], ceil_sizes(*size), strict=True)
    ]
    assert all(x.isfinite().all() for x in maps)


def test_backward_keeps_neither_hidden_maps_nor_kernel_matrices():
    block, tokens = mini().stages[0].blocks[0], torch.randn(1, 112 * 112, 16, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        block(tokens, (112, 112))
    kept = {t.data_ptr(): t.numel() for t in saved}
    assert max(kept.values()) == tokens.numel()  # a hidden map is four times that, a kernel matrix three times
    assert sum(kept.values()) < 8 * tokens.numel()  # x, q, v, y and what two norms take in and give


@pytest.mark.parametrize('attn', ['soft', 'soft_pp'])
@pytest.mark.parametrize('size', [(64, 64), (230, 415)])  # with fewer values in maps than in weights, and with more
@pytest.mark.parametrize('autocast', [False, True])
def test_inference_in_slices_gives_what_training_would(attn, size, autocast, monkeypatch):
    """Without gradients the work is cut into slices that stay in cache, and BatchNorm goes into convolutions."""
    model = SOFT(dict(MINI, dims=(16, 64, 96, 128)), attn=attn).train()
    x = torch.randn(3, 3, *size)
    model(x)  # statistics of BatchNorm that are not 0 and 1
    model.eval()
    maps = []
    for grad, hidden, fold in ((True, 2**30, 2**30), (False, 2**30, 0), (False, 1000, 0), (True, 1000, 2**30)):
        monkeypatch.setattr(slices, 'HIDDEN_SLICE', hidden)
        monkeypatch.setattr(convolutions, 'FOLDED_PIXELS', fold)
        with torch.set_grad_enabled(grad), torch.autocast('cpu', torch.bfloat16, enabled=autocast):
            maps.append(model(x))
    for found in maps[1:]:
        for a, b in zip(found, maps[0], strict=True):
            assert a.dtype == b.dtype
            assert relative_error(a, b) < (0.03 if autocast else 1e-5)


def test_hooks_see_whole_maps_and_every_layer():
    model, seen = mini().eval(), []
    parts = ('stages.0.embed.0', 'stages.0.embed.0.0', 'stages.0.blocks.0.attn', 'stages.0.blocks.0.norm1')
    for name in parts:
        model.get_submodule(name).register_forward_hook(lambda *args: seen.append(args[2].detach().clone()))
    with torch.no_grad():
        watched = model(torch.ones(2, 3, 96, 128))
    assert [tuple(y.shape) for y in seen] == [(2, 32, 48, 64), (2, 32, 48, 64), (2, 24 * 32, 16), (2, 24 * 32, 16)]
    plain = mini().eval()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        for a, b in zip(watched, plain(torch.ones(2, 3, 96, 128)), strict=True):
            assert relative_error(a, b) < 1e-5


def test_random_landmarks_are_seeded():
    model = mini(landmark_sampling='random')
    x = torch.randn(1, 3, 96, 96)
    model.eval()
    with torch.no_grad():
        first = model(x)[0]
        torch.manual_seed(123)
        assert torch.equal(model(x)[0], first)  # evaluation ignores the generator
        other = mini(landmark_sampling='random', landmark_seed=1).eval()
        other.load_state_dict(model.state_dict())
        assert not torch.equal(other(x)[0], first)
        model.train()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
        torch.manual_seed(7)
        drawn = model(x)[0]
        assert not torch.equal(model(x)[0], drawn)  # training draws anew
        torch.manual_seed(7)
        assert torch.equal(model(x)[0], drawn)


def test_keys_of_stage_four_are_exact_up_to_the_bound_and_averaged_beyond():
    attention = SOFT(MINI).stages[3].blocks[0].attn
    unbounded = SOFT(MINI, num_landmarks=None).stages[3].blocks[0].attn
    unbounded.load_state_dict(attention.state_dict())
    with torch.no_grad():
        for leading in (0, 1):
            at_bound = torch.randn(1, leading + 32 * 64, 64)
            assert torch.equal(attention(at_bound, (32, 64)), unbounded(at_bound, (32, 64)))
            # tokens that are constant over 2 x 2 patches lose nothing by being averaged, whatever leads them
            patches = torch.randn(1, 64, 25, 40).repeat_interleave(2, 2).repeat_interleave(2, 3)
            tokens = torch.cat((torch.randn(1, leading, 64), patches.flatten(2).transpose(1, 2)), 1)
            assert attention._keys(tokens, (50, 80))[0].shape[1] == leading + 25 * 40
            assert relative_error(attention(tokens, (50, 80)), unbounded(tokens, (50, 80))) < 1e-5


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        (dict(attn='softpp'), "attn 'softpp' is unknown; choose one of soft_pp, soft"),
        (dict(num_landmark=49), "no option 'num_landmark'. Did you mean 'num_landmarks'?"),
        (dict(landmark_sampling='max'), "'max' is unknown; choose one of conv, avg_pool, random, first"),
        (dict(newton_backward='x'), 'choose one of unrolled, closed'),
        (dict(newton_iters=0), 'newton_iters must be an integer of at least 1; got 0'),
        (dict(num_landmarks=0), 'must be an integer of at least 1; got 0'),
        (dict(frozen_stages=3, out_indices=(0, 1)), '1 to 2 (that many stages as well'),
        (dict(num_landmarks='49'), "num_landmarks (None means no bound) must be an integer of at least 1; got '49'"),
        (dict(newton_iters=2.5), 'newton_iters must be an integer of at least 1; got 2.5'),
        (dict(arch=dict(MINI, dims=16)), 'dims must be positive integers, one for each stage (4)'),
        (dict(arch=dict(dims=(16, 32, 48, 64), heads=(1, 2, 3, 4))), 'exactly the keys dims, heads and depths'),
        (dict(arch=dict(MINI, dims=(16, 32, 48))), 'dims must be positive integers, one for each stage (4)'),
        (dict(arch=dict(MINI, heads=(1, 3, 3, 4))), r'stage 2: dims (32) must be a multiple of heads (3)'),
    ],
    ids=str,
)
def test_bad_options_are_named(options, message):
    with pytest.raises((ValueError, TypeError)) as error:
        SOFT(**options)
    assert message in str(error.value)
