"""Projections are modules that others may wrap, replace, quantise or watch: peft, torchao, hooks."""

import copy

import peft
import pytest
import torch
from backbones import CASES
from helpers import relative_error
from torch import nn

from mmsoft.layers import InLineBranch, Mlp, SoftAttention, with_torch_linears

# Both kinds of attention of SOFT, with and without keys of their own; InLine beside windows and stripes; two others.
FAMILIES = ('soft_pp', 'inline_swin', 'inline_cswin', 'mila', 'ravlt')
MODELS = [('soft_pp', dict(attn=dict(type='soft', symmetric=False))), *((name, {}) for name in FAMILIES)]
models = pytest.mark.parametrize(('name', 'options'), MODELS, ids=str)


def classifier(name, options):
    torch.manual_seed(0)
    return CASES[name].classify(num_classes=5, **options).eval()


def linears_of(model):
    return [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name != 'head']


def with_lora(model, **options):
    linears = linears_of(model)
    torch.manual_seed(1)
    config = peft.LoraConfig(r=3, target_modules=linears, init_lora_weights=False, **options)
    return peft.get_peft_model(model, config), len(linears)


@models
def test_every_lora_adapter_takes_part_and_merges(name, options):
    x = torch.randn(2, 3, 130, 170)
    model = classifier(name, options)
    plain = model(x)
    adapted, count = with_lora(model)
    found = adapted(x)
    assert relative_error(found, plain) > 1e-2
    (found * torch.randn_like(found)).sum().backward()
    trained = {n: p.grad for n, p in adapted.named_parameters() if p.requires_grad}
    assert len(trained) == 2 * count
    for parameter, gradient in trained.items():
        assert gradient is not None, parameter
        assert gradient.abs().max() > 0, parameter
    with torch.no_grad():
        assert relative_error(adapted(x), found) < 1e-4  # in slices
    merged = adapted.merge_and_unload()
    assert not any('lora' in n for n, _ in merged.named_modules())
    assert relative_error(merged(x), found) < 1e-4


@pytest.mark.parametrize('slice_size', [2**21, 1000])
def test_dropout_of_an_adapter_is_the_same_when_the_hidden_map_is_computed_again(slice_size, monkeypatch):
    monkeypatch.setattr('mmsoft.ops.slices.HIDDEN_SLICE', slice_size)
    adapted, _ = with_lora(nn.ModuleList([Mlp(16, 64, recompute=True)]), lora_dropout=0.5)
    mlp = adapted.base_model.model[0].train()
    x = torch.randn(1, 300, 16)
    # the sum is of fc2(...), so the gradient of fc2's adapter holds the mask of fc1's: a central difference sees both
    weight = mlp.fc1.lora_A['default'].weight
    losses = []
    for step in (0, 1e-2, -1e-2):
        torch.manual_seed(2)
        with torch.no_grad():
            weight[0, 0] += step
        loss = mlp(x).square().mean()
        if not step:
            (slope,) = torch.autograd.grad(loss, weight)
        losses.append(loss.item())
        with torch.no_grad():
            weight[0, 0] -= step
    assert (losses[1] - losses[2]) / 2e-2 == pytest.approx(slope[0, 0].item(), rel=0.02)


@models
def test_int8_weights_are_used(name, options):
    """torchao comes with no extra: its newest version, which pip takes, breaks on torch 2.6."""
    quantization = pytest.importorskip('torchao.quantization')
    x = torch.randn(2, 3, 130, 170)
    model = classifier(name, options)
    with torch.no_grad():
        plain = model(x)
        quantization.quantize_(model, quantization.Int8DynamicActivationInt8WeightConfig())
        linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
        assert len(linears) > 20
        assert all(type(m.weight) is not nn.Parameter for m in linears)
        error = relative_error(model(x), plain)
        assert 1e-5 < error < 0.1
        copied = copy.deepcopy(model)
        for module in copied.modules():  # a weight that is not looked at would change nothing
            if isinstance(module, nn.Linear) and module.out_features != 5:
                module.weight = nn.Parameter(torch.zeros(module.weight.shape))
        assert relative_error(copied(x), plain) > 5 * error


@pytest.mark.filterwarnings('ignore')
@models
def test_linear_layers_are_replaced_by_dynamic_int8_ones(name, options):
    x = torch.randn(2, 3, 130, 170)
    model = with_torch_linears(classifier(name, options))
    linears = [*linears_of(model), 'head']
    with torch.no_grad():
        plain = model(x)
        quantized = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
        assert all('quantized' in type(quantized.get_submodule(linear)).__module__ for linear in linears)
        assert 1e-5 < relative_error(quantized(x), plain) < 0.1


@models
def test_hooks_see_every_projection_once_and_whole(name, options):
    x = torch.randn(2, 3, 130, 170)
    model, seen = classifier(name, options), {}
    for part in linears_of(model):
        seen[part] = []
        hook = lambda _, inputs, output, part=part: seen[part].append(output.shape)  # noqa: E731
        model.get_submodule(part).register_forward_hook(hook)
    unwatched = classifier(name, options)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            assert relative_error(model(x), unwatched(x)) < 1e-5
        assert all(len(shapes) == 1 for shapes in seen.values()), seen
        assert all(shapes[0].numel() // shapes[0][-1] >= 2 * 6 * 5 for shapes in seen.values())  # stage 4's tokens
        for shapes in seen.values():
            shapes.clear()


def test_what_a_hook_puts_in_place_of_queries_is_attended():
    layer = next(m for m in classifier('soft_pp', {}).modules() if isinstance(m, SoftAttention))
    tokens = torch.randn(1, 8 * 12, 16)
    before = layer(tokens, (8, 12))
    layer.q.register_forward_hook(lambda *args: torch.zeros_like(args[2]))
    assert relative_error(layer(tokens, (8, 12)), before) > 1e-2


def test_the_convolution_of_values_may_be_watched_and_replaced():
    tokens, grid = torch.randn(2, 30, 16), (5, 6)
    branch = InLineBranch(16, 2)
    maps = torch.stack([t.unflatten(1, grid) for t in (tokens, tokens.flip(1), tokens.roll(1, 1))], -2)
    folded = branch(maps, tokens)
    seen = []
    handle = branch.lepe.register_forward_hook(lambda *args: seen.append(args[2].shape))
    assert relative_error(branch(maps, tokens), folded) < 1e-5
    assert seen == [(2, 16, 5, 6)]
    handle.remove()
    branch.lepe = nn.Sequential(branch.lepe, nn.Dropout(1.0))
    assert relative_error(branch(maps, tokens), folded) > 1e-2


@pytest.mark.parametrize('name', ['inline_cswin', 'mila', 'ravlt'])
def test_adapters_of_depthwise_convolutions_take_part(name):
    """peft asks for a rank that the channels divide, and does not merge them."""
    model, x = classifier(name, {}), torch.randn(1, 3, 96, 64)
    plain = model(x)
    ranks = {part: module.groups for part, module in model.named_modules() if part.endswith('lepe')}
    torch.manual_seed(1)
    config = peft.LoraConfig(target_modules=list(ranks), rank_pattern=ranks, init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    (adapted(x) - plain.detach()).square().sum().backward()
    trained = [p.grad for p in adapted.parameters() if p.requires_grad]
    assert len(trained) == 2 * len(ranks) > 0
    assert all(gradient.abs().max() > 0 for gradient in trained)


def test_an_mlp_takes_another_linear_layer():
    mlp = Mlp(16, 64)
    mlp.fc1 = nn.Sequential(nn.Linear(16, 4), nn.Linear(4, 64))  # of low rank
    mlp(torch.randn(2, 30, 16)).sum().backward()
    assert all(p.grad.abs().max() > 0 for p in mlp.parameters())
