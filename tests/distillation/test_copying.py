"""Copies of softmax models: with the teacher's formula in the linear layers' place, they are the teacher."""

import mmdet.models
import pytest
import timm
import torch
import torchvision
from helpers import relative_error
from mmdet.models.backbones import PyramidVisionTransformer
from mmdet.models.backbones import SwinTransformer as MmdetSwin
from mmseg.models.backbones.swin import SwinTransformer as MmsegSwin
from teachers import pvt_file
from timm.models.swin_transformer import checkpoint_filter_fn
from timm.models.vision_transformer import ResPostBlock
from torch import nn

import mmsoft
from mmsoft.checkpoints.architecture import read_architecture
from mmsoft.distillation.copying import copy_weights, linear_options
from mmsoft.distillation.sources import TeacherError, from_file, read
from mmsoft.layers import InLineAttention, SoftmaxAttention, WindowAttention

SMALL = dict(embed_dims=32, depths=(2, 2, 3, 2), num_heads=(1, 2, 4, 8))
SWIN = 'swin_tiny_patch4_window7_224'
PVT = dict(num_layers=[2, 1, 2, 1])


def official_swin():
    """The authors' file of a classifier: timm reads it, and so do we."""
    torch.manual_seed(0)
    model = timm.create_model(SWIN, num_classes=5)
    later = {f'layers.{i + 1}.downsample': f'layers.{i}.downsample' for i in range(3)}
    weights = {}
    for name, value in model.state_dict().items():
        place = '.'.join(name.split('.')[:3])
        weights[name.replace(place, later.get(place, place)).replace('head.fc', 'head')] = value
    again = checkpoint_filter_fn(dict(weights), model)
    assert {name: tuple(value.shape) for name, value in again.items()} == {
        name: tuple(value.shape) for name, value in model.state_dict().items()
    }
    return from_file(weights), model


# name -> teacher, and sizes of pictures
SOURCES = {
    'mmdet-swin': (lambda: MmdetSwin(), (75, 130)),
    'mmdet-swin-small-maps': (lambda: MmdetSwin(**SMALL, out_indices=(1, 2)), (100, 401)),
    'mmseg-swin': (lambda: MmsegSwin(**SMALL, qkv_bias=False, qk_scale=0.3), (230, 177)),
    'mmdet-swin-scaled': (
        lambda: MmdetSwin(**dict(SMALL, num_heads=(1, 4, 4, 8)), qk_scale=32**-0.5, with_cp=True, out_indices=(3,)),
        (96, 64),
    ),
    'mmdet-pvt-without-biases': (lambda: PyramidVisionTransformer(**PVT, qkv_bias=False), (64, 64)),
    'timm-swin-partitioned': (
        lambda: timm.create_model(
            SWIN, num_classes=0, embed_dim=32, depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8), always_partition=True
        ),
        (224, 224),
    ),
    'timm-vit-features': (
        lambda: build(num_classes=0, global_pool='avg', fc_norm=False, proj_bias=False, qkv_bias=False)(),
        (224, 224),
    ),
    'mmdet-pvt': (lambda: PyramidVisionTransformer(**PVT), (96, 160)),
    'timm-swin': (lambda: timm.create_model(SWIN, num_classes=7), (224, 224)),
    'timm-deit': (lambda: timm.create_model('deit_tiny_patch16_224', num_classes=7), (224, 224)),
    'timm-vit': (lambda: timm.create_model('vit_small_patch16_224', img_size=160, depth=3), (160, 160)),
    'torchvision-swin': (lambda: torchvision.models.swin_t(num_classes=4), (100, 236)),
    'ours-softmax': (
        lambda: mmsoft.SOFT(dict(dims=(32, 64, 96, 128), heads=(1, 2, 3, 4), depths=(1, 2, 1, 1)), attn='softmax'),
        (70, 96),
    ),
}


def double(reading, model, attentions, eps):
    """Softmax in place of each linear layer: its weights are the linear layer's own, tables are the teacher's."""
    for block in attentions:
        linear = model.get_submodule(block).attn
        assert isinstance(linear, InLineAttention)
        own = {k: v for k, v in linear.state_dict().items() if 'predictor' not in k}
        theirs = {
            k.removeprefix(f'{block}.attn.'): v for k, v in reading.weights.items() if k.startswith(f'{block}.attn.')
        }
        dim, heads = linear.q.in_features, linear.num_heads
        if 'relative_position_bias_table' in theirs:
            shifted = int(block.rpartition('.')[2]) % 2 == 1
            attn = WindowAttention(dim, heads, model.window_size, shifted, model.shift)
            table = dict(relative_position_bias_table=theirs['relative_position_bias_table'])
            stacked = {f'qkv.{kind}': torch.cat((own[f'q.{kind}'], own[f'kv.{kind}'])) for kind in ('weight', 'bias')}
            attn.load_state_dict({**stacked, **table, **{k: own[k] for k in ('proj.weight', 'proj.bias')}})
        else:
            reduced = {k: v for k, v in theirs.items() if k.startswith('reduce')}
            attn = SoftmaxAttention(dim, heads, reduction=reduced['reduce.weight'].shape[-1] if reduced else 1)
            if reduced:
                attn.reduce_norm.eps = eps
            attn.load_state_dict({**own, **reduced})
        model.get_submodule(block).attn = attn
    return model.eval()


def randomise(teacher):
    """Weights of sizes that show whatever is out of order: also biases, norms and tables."""
    for name, parameter in teacher.named_parameters():
        if parameter.dim() == 1 or 'table' in name or 'pos_embed' in name or 'cls_token' in name:
            nn.init.normal_(parameter, 1.0 if 'norm' in name and name.endswith('weight') else 0.0, 0.2)
    teacher.eval()  # of mmdet's Swin, it returns nothing
    return teacher


def compare(teacher, found, expected, eps=1e-6):
    reading = read(teacher)
    model = reading.kind(**linear_options(reading))
    copy = copy_weights(reading, model, teacher)
    left = model.load_state_dict(copy.weights, strict=False)
    missing = [name for name in left.missing_keys if not name.endswith('num_batches_tracked')]
    assert sorted(missing) == sorted(set(copy.names['new']) - copy.weights.keys())
    assert not left.unexpected_keys
    model = double(reading, model.double(), copy.attentions, eps).double()
    with torch.no_grad():
        found, expected = found(model), expected(teacher.double())
    assert isinstance(found, (tuple, list)) == isinstance(expected, (tuple, list))
    found, expected = ([y] if isinstance(y, torch.Tensor) else y for y in (found, expected))
    for one, other in zip(found, expected, strict=True):
        assert relative_error(one, other) < 1e-5


@pytest.mark.parametrize('name', SOURCES)
def test_with_softmax_the_copy_is_the_teacher(name):
    build, size = SOURCES[name]
    torch.manual_seed(1)
    x = torch.randn(2, 3, *size, dtype=torch.float64)
    compare(randomise(build()), lambda model: model(x), lambda teacher: teacher(x))


def test_the_authors_pvt_file_becomes_a_backbone():
    teacher = from_file(pvt_file())
    assert teacher.layers[0][0].norm.eps == 1e-5
    x = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    compare(teacher, lambda ours: ours(x), lambda own: own(x), eps=1e-5)


def test_an_authors_pvt_file_of_another_size_or_not_whole():
    weights = pvt_file((64, 64, 64, 64))
    sides = (24, 12, 6, 3)
    small = {f'pos_embed{i}': torch.zeros(1, side**2 + (i == 4), 64) for i, side in enumerate(sides, start=1)}
    assert read(from_file(weights | small)).options['img_size'] == (96, 96)
    for name in ('block2.0.attn.kv.bias', 'block2.0.mlp.fc1.weight', 'patch_embed1.proj.weight'):
        with pytest.raises(TeacherError, match=f"no whole PVT v1 of its authors: KeyError: '{name}'"):
            from_file({key: value for key, value in weights.items() if key != name})
    with pytest.raises(TeacherError, match='no whole PVT v1'):
        from_file(weights | dict(pos_embed1=torch.zeros(3)))


def test_inline_has_a_number_for_each_stage():
    deit = read(timm.create_model('deit_tiny_patch16_224'))
    with pytest.raises(TeacherError, match=r'--inline for InLine-DeiT takes 1 numbers; got \(3, 3\)'):
        linear_options(deit, (3, 3))
    with pytest.raises(TeacherError, match=r'all layers of InLine-DeiT, \(12,\), become linear'):
        linear_options(deit, (3,))
    assert linear_options(deit, (12,))['arch']['inline'] == (12,)


class Hurried(MmdetSwin):
    def forward(self, x):
        return super().forward(x)[:1]


def three_stages():
    threes = dict(patch_sizes=[4, 2, 2], strides=[4, 2, 2], sr_ratios=[8, 4, 2], num_heads=[1, 2, 5])
    return PyramidVisionTransformer(num_stages=3, num_layers=[1] * 3, out_indices=(0, 1, 2), **threes)


def gated(model):
    model.blocks[0].attn.gate = nn.Linear(192, 192)
    return model


def with_head(model, place):
    setattr(model, place, nn.Sequential(nn.Linear(model.get_submodule(place).in_features, 3)))
    return model


def build(**options):
    return lambda: timm.create_model('vit_tiny_patch16_224', depth=1, **options)


@pytest.mark.parametrize(
    ('teacher', 'says'),
    [
        (
            lambda: torchvision.models.resnet18(),
            'torchvision.ResNet has no softmax attention that can be replaced here',
        ),
        (lambda: torchvision.models.swin_v2_t(), 'is Swin v2; give a Swin v1'),
        (lambda: MmdetSwin(**SMALL, use_abs_pos_embed=True), 'has a position table, which InLine-Swin has not'),
        (lambda: MmdetSwin(**SMALL, mlp_ratio=2), 'MLPs of 2 times the width; those of ours have 4 times'),
        (lambda: MmdetSwin(**SMALL, norm_cfg=dict(type='LN', eps=1e-3)), 'has eps=0.001; stages.0.embed.norm of'),
        (lambda: mmdet.models.PyramidVisionTransformerV2(num_layers=[1] * 4), 'give a PVT v1'),
        (lambda: timm.create_model(SWIN, img_size=96), 'build it for larger pictures'),
        (build(reg_tokens=2), 'has register tokens'),
        (build(init_values=0.1), 'blocks.0.ls1.gamma, which InLine-DeiT has not'),
        (build(global_pool='avg'), 'a norm after pooling'),
        (build(global_pool='avg', fc_norm=False, pool_include_prefix=True), 'pools the class token with the others'),
        (build(act_layer='relu'), 'blocks.0.mlp.act is ReLU.*; MLPs of the copy have the exact GELU'),
        (build(act_layer='gelu_tanh'), 'blocks.0.mlp.act is GELUTanh'),
        (build(block_fn=ResPostBlock), 'layers of .*ResPostBlock'),
        (lambda: gated(build()()), 'blocks.0.attn.gate.weight, which InLine-DeiT has not'),
        (lambda: with_head(build()(), 'head'), 'has head.0.weight: its head has to be one linear layer'),
        (lambda: with_head(torchvision.models.swin_t(), 'head'), 'has head.0.weight: its head has to be one linear'),
        (lambda: timm.create_model(SWIN, global_pool='', num_classes=0), "pools by ''"),
        (lambda: MmdetSwin(**SMALL, act_cfg=dict(type='ReLU')), 'ffn.layers.0.1 is ReLU'),
        (lambda: MmsegSwin(**SMALL, strides=(4, 2, 2, 1)), r'stages.2.downsample.sampler is of .*stride \(1, 1\)'),
        (lambda: MmdetSwin(**SMALL, strides=(4, 1, 2, 2)), r'stages.0.downsample.sampler is of .*stride \(1, 1\)'),
        (lambda: MmdetSwin(**SMALL, patch_norm=False), 'it has no stages.0.embed.norm.weight'),
        (lambda: Hurried(**SMALL), 'Hurried has a forward of its own'),
        (lambda: PyramidVisionTransformer(**PVT, act_cfg=dict(type='ReLU')), 'ffn.layers.1 is ReLU'),
        (lambda: PyramidVisionTransformer(**PVT, paddings=[1, 0, 0, 0]), r'projection is of .*padding \(1, 1\)'),
        (lambda: PyramidVisionTransformer(**PVT, use_conv_ffn=True), r'layers.1 is of \(3, 3\) pixels'),
        (lambda: three_stages(), 'has 3 stages; InLine-PVT has 4'),
        (build(patch_size=8), 'has patches of 16 x 16'),
        (lambda: mmsoft.InLineSwin('tiny'), 'has no softmax attention among the layers that would become linear'),
    ],
)
def test_teachers_that_cannot_be_made_linear_are_told_of(teacher, says):
    with pytest.raises(TeacherError, match=says):
        mmsoft.linearize(teacher())


def test_files_that_are_nobodys_are_told_of():
    with pytest.raises(TeacherError, match=r"first name is 'fc.weight'\): give the config"):
        from_file({'fc.weight': torch.zeros(1)})
    wrong = pvt_file()
    wrong['block2.0.norm1.bias'] = torch.zeros(3)
    with pytest.raises(TeacherError, match=r'layers.1.1.1.norm1.bias of PyramidVisionTransformer is \(128,\), and in'):
        from_file(wrong)


def test_a_choice_of_layers_and_attentions():
    swin = MmdetSwin(**SMALL)
    linear = mmsoft.linearize(swin, inline=(0, 1, 3, 2))
    kinds = [[type(block.attn) is InLineAttention for block in stage.blocks] for stage in linear.stages]
    assert kinds == [[False] * 2, [True, False], [True] * 3, [True] * 2]
    with pytest.raises(ValueError, match='arch inline counts layers'):
        mmsoft.linearize(swin, inline=(0, 1, 4, 2))
    with pytest.raises(TeacherError, match='InLine-Swin has InLine attention alone; got --attention soft_pp'):
        mmsoft.linearize(swin, attention='soft_pp')
    own = mmsoft.SOFT(dict(dims=(32, 64, 96, 128), heads=(1, 2, 3, 4), depths=(1, 2, 1, 1)), attn='softmax')
    for attention in mmsoft.models.ATTENTIONS.keys() - {'softmax'}:
        found = mmsoft.linearize(own, attention=attention)
        block = found.stages[1].blocks[1].attn
        assert type(block) is not type(own.stages[1].blocks[1].attn)
        assert type(found.stages[3].blocks[0].attn) is SoftmaxAttention
        if hasattr(block, 'q'):
            assert torch.equal(block.q.weight, own.stages[1].blocks[1].attn.q.weight)


def test_output_norms_freeze_with_their_stage_and_show_in_weights():
    linear = mmsoft.linearize(MmdetSwin(**SMALL, frozen_stages=2))
    linear.requires_grad_(True).train()
    assert [norm.weight.requires_grad for norm in linear.map_norms.values()] == [False, False, True]
    assert not linear.map_norms['0'].training
    weights = mmsoft.linearize(MmdetSwin(**SMALL)).state_dict()
    assert read_architecture(weights).options['output_norms'] is True


def test_the_authors_swin_file_is_timms_model():
    teacher, model = official_swin()
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert relative_error(teacher(x), model.eval()(x)) < 1e-4
    compare(teacher, lambda ours: ours(x.double()), lambda own: own(x.double()))
