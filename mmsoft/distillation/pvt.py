"""PVT v1: mmdet's backbone, and the authors' file of one, read."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from mmsoft.models.archs import Arch
from mmsoft.models.family import FAMILIES
from mmsoft.registry import MODELS
from mmsoft.versions import require

from .reading import STAGES, Pairs, Reading, TeacherError, depth_of, drop_path_of, named, with_biases

HEAD = 64  # the width of a head in the authors' PVT


def _mm_pvt_pairs(first: int, depths: tuple[int, ...]) -> Pairs:
    """``first``: the number of the first layer, after a position table."""
    pairs = {}
    for i, depth in enumerate(depths):
        pairs |= {
            f'layers.{i}.0.projection': f'stages.{i}.embed.proj',
            f'layers.{i}.0': f'stages.{i}.embed',
            f'layers.{i}.1.0.pos_embed': f'stages.{i}.position.table',
        }
        for j in range(depth):
            theirs, ours = f'layers.{i}.1.{j + first}', f'stages.{i}.blocks.{j}'
            pairs |= {
                f'{theirs}.attn.attn.out_proj': f'{ours}.attn.proj',
                f'{theirs}.attn.attn.in_proj_weight': f'{ours}.attn.qkv.weight',
                f'{theirs}.attn.attn.in_proj_bias': f'{ours}.attn.qkv.bias',
                f'{theirs}.attn.sr': f'{ours}.attn.reduce',
                f'{theirs}.attn.norm': f'{ours}.attn.reduce_norm',
                f'{theirs}.ffn.layers.0': f'{ours}.mlp.fc1',
                f'{theirs}.ffn.layers.3': f'{ours}.mlp.fc2',
                theirs: ours,
            }
    return pairs


def read_mm_pvt(model: Any) -> Reading:
    """mmdet's PVT v1: MLPs are convolutions of one pixel, queries, keys and values are stacked."""
    title = 'mmdet.PyramidVisionTransformer'
    if type(model).__name__ != 'PyramidVisionTransformer':
        raise TeacherError(f'mmdet.{type(model).__name__} overlaps patches and convolves in its MLPs: give a PVT v1')
    if len(model.layers) != 4:
        raise TeacherError(f'{title} has {len(model.layers)} stages; InLine-PVT has 4')
    table = getattr(model.layers[0][1][0], 'pos_shape', None)
    if table is None or not isinstance(model.layers[0][2], nn.Identity):
        raise TeacherError(f'{title}: without position tables, or with norms after stages, it is no PVT v1')
    weights, names = named(model, _mm_pvt_pairs(1, tuple(model.num_layers)))
    converted = set()
    for name, value in weights.items():
        if name.endswith('position.table'):
            shape = model.layers[int(name.split('.')[1])][1][0].pos_shape
            weights[name] = value.unflatten(1, tuple(map(int, shape)))
            converted.add(name)
        elif '.mlp.' in name and name.endswith('.weight'):
            weights[name] = value.flatten(1)
            converted.add(name)
    with_biases(weights, 'attn.qkv', 'attn.proj')
    dims = tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES)
    if tuple(model.strides) != (4, 2, 2, 2) or tuple(model.patch_sizes) != (4, 2, 2, 2):
        raise TeacherError(
            f'{title}: patches {model.patch_sizes}, strides {model.strides}; InLine-PVT has (4, 2, 2, 2)'
        )
    ratios = tuple(weights[f'stages.{i}.blocks.0.mlp.fc1.weight'].shape[0] // dims[i] for i in STAGES)  # (ratio C, C)
    height, width = (int(side) for side in table)
    options = dict(
        arch=Arch(dims, tuple(model.num_heads), tuple(model.num_layers))._asdict(),
        mlp_ratios=ratios,
        in_channels=weights['stages.0.embed.proj.weight'].shape[1],
        img_size=(4 * height, 4 * width),
        embed_eps=float(model.layers[0][0].norm.eps),
        out_indices=tuple(model.out_indices),
        drop_path_rate=drop_path_of(model),
    )
    notes = ['mmdet leaves out rows and columns that fill no patch, this copy pads them: multiples of 32 are the same']
    return Reading(title, FAMILIES['InLine-PVT'], options, weights, names, converted, notes=notes, multiple=32)


@MODELS.register_module(name='AuthorsPVT')
def authors_pvt(**options: Any) -> nn.Module:
    """mmdet's backbone with the norms of the authors' code, which are torch's own except for those of layers."""
    require('mmdet')
    from mmdet.models.backbones import PyramidVisionTransformer

    model = PyramidVisionTransformer(**options)
    for module in model.modules():
        norm = getattr(module, 'norm', None)
        if type(module).__name__ in ('PatchEmbed', 'SpatialReductionAttention') and isinstance(norm, nn.LayerNorm):
            norm.eps = 1e-5
    return model


@contextmanager
def _a_whole_file() -> Iterator[None]:
    """What a file lacks is told of as such."""
    try:
        yield
    except (KeyError, IndexError) as error:
        raise TeacherError(f'this is no whole PVT v1 of its authors: {type(error).__name__}: {error}') from error


@_a_whole_file()
def pvt_spec(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config of the backbone in the authors' file of a PVT v1."""
    places = [f'block{i + 1}.0' for i in STAGES]
    lacking = next((name for place in places if (name := f'{place}.attn.kv.weight') not in weights), None)
    if lacking:
        raise TeacherError(f'this is no PVT v1 of four stages: it has no {lacking}')
    dims = [weights[f'{place}.attn.q.weight'].shape[0] for place in places]
    heads = [dim // HEAD for dim in dims]
    if [HEAD * number for number in heads] != dims:
        raise TeacherError(f"widths {dims} are not multiples of {HEAD}, the width of a head in the authors' PVT")
    reductions = [weights.get(f'{place}.attn.sr.weight') for place in places]
    return dict(
        type='mmsoft.AuthorsPVT',
        pretrain_img_size=4 * math.isqrt(weights['pos_embed1'].shape[1]),
        in_channels=weights['patch_embed1.proj.weight'].shape[1],
        embed_dims=HEAD,
        num_layers=[depth_of(weights, f'block{i + 1}') for i in STAGES],
        num_heads=heads,
        sr_ratios=[1 if kernel is None else kernel.shape[-1] for kernel in reductions],
        mlp_ratios=[weights[f'{p}.mlp.fc1.weight'].shape[0] // dim for p, dim in zip(places, dims, strict=True)],
    )


@_a_whole_file()
def pvt_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By mmdet's names; the head, and the class token of stage 4, have no place in a backbone."""
    from mmdet.models.backbones.pvt import pvt_convert

    table = weights[f'pos_embed{len(STAGES)}']
    without = table[:, 1:] if math.isqrt(table.shape[1] - 1) ** 2 == table.shape[1] - 1 else table
    return pvt_convert({**weights, f'pos_embed{len(STAGES)}': without})
