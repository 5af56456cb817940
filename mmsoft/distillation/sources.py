"""Softmax transformers of other libraries, read: which of our architectures they are, and their weights by our names.

A reader takes a live backbone or classifier. Weights keep the teacher's attention: stacked ``qkv`` and tables of
relative positions of windows, ``reduce`` of PVT; copying.py makes a linear attention's of them.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from mmsoft.models.archs import Arch
from mmsoft.models.family import FAMILIES, Family
from mmsoft.models.options import options_of
from mmsoft.versions import require
from mmsoft.weights.files import IGNORED
from mmsoft.weights.renaming import renamer

from .unseen import odd_part, scale_factors, scale_queries

STAGES = range(4)
Pairs = Mapping[str, str]


class TeacherError(ValueError):
    """A model that cannot be made linear."""


@dataclass(frozen=True)
class Reading:
    """What a teacher is in our terms.

    Args:
        title: The library and class.
        family: Whose network it is but for the attention.
        options: Of our constructor, ``arch`` a dict without ``inline`` among them.
        weights: By our names, with the teacher's attention.
        names: Our names of weights -> the teacher's.
        converted: Our names of weights whose layout differs from the teacher's.
        classifier: Whether there is a head.
        notes: What differs between the teacher and its copy besides the attention.
        multiple: Sides of pictures for which maps of the two are equal are multiples of it.
    """

    title: str
    family: Family
    options: dict[str, Any]
    weights: dict[str, Tensor]
    names: dict[str, str]
    converted: set[str] = field(default_factory=set)
    classifier: bool = False
    notes: list[str] = field(default_factory=list)
    multiple: int = 1

    @property
    def kind(self) -> type[nn.Module]:
        """Our class."""
        return self.family.classifier if self.classifier else self.family.backbone


def read(model: nn.Module) -> Reading:
    """A backbone of mmdet or mmseg, a classifier of timm or torchvision, or a model of ours."""
    for base in type(model).__mro__:
        reader = READERS.get((base.__module__.split('.')[0], base.__name__))
        if reader:
            reading = reader(model)
            odd = None if reader is read_own else odd_part(model, base)
            if odd:
                raise TeacherError(f'{reading.title}: {odd}')
            return reading
    known = ', '.join(f'{library}.{name}' for library, name in READERS)
    raise TeacherError(
        f'{type(model).__module__.split(".")[0]}.{type(model).__name__} has no softmax attention that can be replaced '
        f'here; give one of {known}'
    )


def read_own(model: nn.Module) -> Reading:
    """One of our own models; which of its attentions are softmax, copying.py finds."""
    family = next(family for family in FAMILIES.values() if isinstance(model, (family.backbone, family.classifier)))
    weights = {name: value for name, value in model.state_dict().items() if not name.endswith(IGNORED)}
    classifier = hasattr(model, 'num_classes')
    known = options_of(family.classifier if classifier else family.backbone)
    options = {name: getattr(model, name) for name in known if hasattr(model, name) and name != 'init_cfg'}
    options['arch'] = {name: tuple(value) for name, value in model.arch._asdict().items()}
    if classifier:
        options.pop('out_indices')
    if 'output_norms' in known:
        options['output_norms'] = bool(model.map_norms)
    if 'attn' in known and model.pyramid and all(block.attn.max_keys is None for block in model.stages[3].blocks):
        options['num_landmarks'] = None
    title, names = f'mmsoft.{type(model).__name__}', {name: name for name in weights}
    return Reading(title, family, options, weights, names, classifier=classifier)


# Within a Swin block, the libraries' names and ours.
_MM_BLOCK = {
    'attn.w_msa': 'attn',
    'ffn.layers.0.0': 'mlp.fc1',
    'ffn.layers.1': 'mlp.fc2',
}
_MM_SWIN: Pairs = {
    'patch_embed.projection': 'stages.0.embed.proj',
    'patch_embed': 'stages.0.embed',
    **{f'stages.*.blocks.*.{theirs}': f'stages.*.blocks.*.{ours}' for theirs, ours in _MM_BLOCK.items()},
    **{f'stages.{i}.downsample': f'stages.{i + 1}.embed' for i in range(3)},
    **{f'norm{i}': f'map_norms.{i}' for i in range(3)},
    'norm3': 'norm',
}
_TIMM_SWIN: Pairs = {
    'patch_embed': 'stages.0.embed',
    'layers.*.downsample': 'stages.*.embed',
    'layers.*.blocks': 'stages.*.blocks',
    'head.fc': 'head',
}
_TORCHVISION_SWIN: Pairs = {
    'features.0.0': 'stages.0.embed.proj',
    'features.0.2': 'stages.0.embed.norm',
    **{
        theirs: ours
        for i in STAGES
        for theirs, ours in {
            f'features.{2 * i + 1}.*.mlp.0': f'stages.{i}.blocks.*.mlp.fc1',
            f'features.{2 * i + 1}.*.mlp.3': f'stages.{i}.blocks.*.mlp.fc2',
            f'features.{2 * i + 1}': f'stages.{i}.blocks',
            f'features.{2 * i}': f'stages.{i}.embed',
        }.items()
    },
}


def read_mm_swin(model: Any) -> Reading:
    """mmdet's and mmseg's: patches that merge lie channel by channel, and every output has a norm."""
    title = f'{type(model).__module__.split(".")[0]}.SwinTransformer'
    if model.use_abs_pos_embed:
        raise TeacherError(f'{title} with use_abs_pos_embed=True has a position table, which InLine-Swin has not')
    weights, names = _named(model, _MM_SWIN)
    converted = {f'stages.{i}.embed.{part}' for i in (1, 2, 3) for part in ('norm.weight', 'norm.bias')}
    converted |= {f'stages.{i}.embed.reduction.weight' for i in (1, 2, 3)}
    for name in converted & weights.keys():
        weights[name] = _patches_first(weights[name])
    first = model.stages[0].blocks[0]
    outputs = tuple(model.out_indices)
    return _swin(
        title,
        model,
        weights,
        names,
        dict(
            shift='all',
            output_norms=any(i < 3 for i in outputs),
            out_indices=outputs,
            frozen_stages=model.frozen_stages,
            with_cp=bool(first.with_cp),
            drop_path_rate=_drop_path(model),
        ),
        window=first.attn.window_size,
        converted=converted,
    )


def _patches_first(value: Tensor) -> Tensor:
    """The last dimension 4 C, from (channel, row, column) of 2 x 2 patches to (column, row, channel)."""
    return value.unflatten(-1, (-1, 2, 2)).movedim(-3, -1).transpose(-2, -3).flatten(-3).contiguous()


def read_timm_swin(model: Any) -> Reading:
    """timm's, whose windows are cut for one image size."""
    weights, names = _named(model, _TIMM_SWIN)
    pool = getattr(model.head, 'global_pool', None)
    if getattr(pool, 'pool_type', 'avg') != 'avg':
        raise TeacherError(f'timm.SwinTransformer pools by {pool.pool_type!r}; InLine-Swin by the mean of all tokens')
    blocks = [block for layer in model.layers for block in layer.blocks]
    window = max(max(block.window_size) for block in blocks)
    notes = []
    for block in blocks:
        if tuple(block.window_size) != (window, window):
            raise TeacherError(
                f'timm.SwinTransformer for maps of {block.input_resolution} has windows of {block.window_size} there, '
                f'and of {window} elsewhere: build it for larger pictures (img_size), or with one window_size'
            )
        if any(block.shift_size) and any(side % window for side in block.input_resolution):
            notes = ['timm shifts maps before it pads them to whole windows, this copy after']
    always = any(getattr(block, 'always_partition', False) for block in blocks)
    options = dict(shift='all' if always else 'by_side', drop_path_rate=_drop_path(model))
    return _swin('timm.SwinTransformer', model, weights, names, options, window, classifier=True, notes=notes)


def read_torchvision_swin(model: Any) -> Reading:
    attention = model.features[1][0].attn
    if type(attention).__name__ != 'ShiftedWindowAttention':
        raise TeacherError(f'torchvision.SwinTransformer with {type(attention).__name__} is Swin v2; give a Swin v1')
    weights, names = _named(model, _TORCHVISION_SWIN)
    options = dict(shift='by_side', drop_path_rate=_drop_path(model))
    notes = ['torchvision leaves out pixels that fill no patch, this copy pads them: multiples of 4 are the same']
    title, window = 'torchvision.SwinTransformer', attention.window_size[0]
    return _swin(title, model, weights, names, options, window, classifier=True, notes=notes, multiple=4)


def swin_from_weights(weights: Mapping[str, Tensor]) -> nn.Module:
    """A model of ours with windows throughout, of the authors' file of a classifier or backbone."""
    family = FAMILIES['InLine-Swin']
    ours = family.to_ours(weights)
    tables = [name for name in ours if name.endswith('relative_position_bias_table')]
    sides = {(math.isqrt(ours[name].shape[0]) + 1) // 2 for name in tables}
    if len(sides) != 1:
        raise TeacherError(f'the windows of this Swin have sides of {sorted(sides)}; InLine-Swin has one for all')
    arch = _swin_arch(ours)
    options: dict[str, Any] = dict(arch=dict(arch, inline=(0, 0, 0, 0)), window_size=sides.pop())
    if 'head.weight' not in ours:
        model = family.backbone(**options)
    else:
        model = family.classifier(**options, num_classes=ours['head.weight'].shape[0])
    load_whole(model, ours, 'the file')
    return model.eval()


def load_whole(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """All of them, or an error that names what does not fit."""
    own = {name: value.shape for name, value in model.state_dict().items() if not name.endswith(IGNORED)}
    found = {name: value.shape for name, value in weights.items() if not name.endswith(IGNORED)}
    odd = next((name for name in (*own, *found) if own.get(name) != found.get(name)), None)
    if odd is not None:
        shapes = [tuple(shapes[odd]) if odd in shapes else 'nothing' for shapes in (own, found)]
        raise TeacherError(f'{odd} of {type(model).__name__} is {shapes[0]}, and in {source} {shapes[1]}')
    model.load_state_dict(weights, strict=False)


def _swin(
    title: str,
    model: nn.Module,
    weights: dict[str, Tensor],
    names: dict[str, str],
    options: dict[str, Any],
    window: int,
    classifier: bool = False,
    converted: Collection[str] = (),
    **rest: Any,
) -> Reading:
    """What all Swins share: which shapes there must be, and what becomes of their options."""
    arch = _swin_arch(weights)
    _check_shapes(title, weights, ratios=(4,) * 4)
    if any(2 * small != large for small, large in zip(arch['dims'], arch['dims'][1:], strict=False)):
        raise TeacherError(f'{title}: widths {arch["dims"]} do not double from stage to stage, as in InLine-Swin')
    if weights['stages.0.embed.proj.weight'].shape[2:] != (4, 4):
        size = tuple(weights['stages.0.embed.proj.weight'].shape[2:])
        raise TeacherError(f'{title}: patches of {size} pixels; InLine-Swin has patches of 4 x 4')
    tables = [value for name, value in weights.items() if name.endswith('relative_position_bias_table')]
    if any(table.shape[0] != (2 * window - 1) ** 2 for table in tables):
        raise TeacherError(f'{title}: its windows differ in size; InLine-Swin has one size for all')
    _with_biases(weights, 'attn.qkv', 'attn.proj')
    widths = {
        f'stages.{i}.blocks.{j}.attn.': arch['dims'][i] // arch['heads'][i]
        for i in STAGES
        for j in range(arch['depths'][i])
    }
    scale_queries(weights, scale_factors(model, names, widths))
    options = dict(arch=arch, window_size=window, in_channels=weights['stages.0.embed.proj.weight'].shape[1], **options)
    if classifier:
        options['num_classes'] = _classes(title, weights)
    kept = set(converted) & weights.keys()
    return Reading(title, FAMILIES['InLine-Swin'], options, weights, names, kept, classifier, **rest)


def _classes(title: str, weights: Mapping[str, Tensor]) -> int:
    """Of a classifier; 0 of one without a head, which gives what a head would get."""
    odd = next((name for name in weights if name.startswith('head.') and name.count('.') > 1), None)
    if odd:
        raise TeacherError(f'{title} has {odd}: its head has to be one linear layer, or none')
    return len(weights.get('head.weight', ()))


def _swin_arch(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    tables = [f'stages.{i}.blocks.0.attn.relative_position_bias_table' for i in STAGES]
    lacking = next((name for name in (*tables, 'stages.0.embed.norm.weight') if name not in weights), None)
    if lacking:
        raise TeacherError(f'this is no Swin of four stages that InLine-Swin can be: it has no {lacking}')
    return dict(
        dims=tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES),
        heads=tuple(weights[name].shape[1] for name in tables),
        depths=tuple(_depth(weights, f'stages.{i}.blocks') for i in STAGES),
    )


def _depth(weights: Mapping[str, Tensor], prefix: str) -> int:
    return sum(name.startswith(f'{prefix}.') and name.endswith('.norm1.weight') for name in weights)


def _with_biases(weights: dict[str, Tensor], *projections: str) -> None:
    """Zeros where the teacher has no biases of queries, keys and values."""
    for name in [name for name in weights if name.endswith(tuple(f'.{each}.weight' for each in projections))]:
        bias = name.removesuffix('weight') + 'bias'
        if bias not in weights:
            weights[bias] = weights[name].new_zeros(weights[name].shape[0])


def _check_shapes(title: str, weights: Mapping[str, Tensor], ratios: tuple[int, ...]) -> None:
    """MLPs as wide as ours."""
    for i, ratio in enumerate(ratios):
        name = f'stages.{i}.blocks.0.mlp.fc1.weight'
        if name not in weights:
            raise TeacherError(f'{title}: its blocks have no MLP of two linear layers')
        rows, columns = weights[name].shape
        if rows != ratio * columns:
            raise TeacherError(f'{title}: MLPs of {rows / columns:g} times the width; those of ours have {ratio} times')


def _drop_path(model: nn.Module) -> float:
    """Of the last layer: mmcv and timm call it drop_prob, torchvision p."""
    rates = [getattr(module, 'drop_prob', None) for module in model.modules()]
    rates += [module.p for module in model.modules() if type(module).__name__ == 'StochasticDepth']
    return round(float(max((rate for rate in rates if rate), default=0.0)), 6)


def _named(model: nn.Module, pairs: Pairs) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Weights by our names, and the names' originals."""
    rename, weights, names = renamer(pairs.items()), {}, {}
    for name, value in model.state_dict().items():
        if not name.endswith(IGNORED):
            weights[rename(name)], names[rename(name)] = value, name
    return weights, names


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
    weights, names = _named(model, _mm_pvt_pairs(1, tuple(model.num_layers)))
    converted = set()
    for name, value in weights.items():
        if name.endswith('position.table'):
            shape = model.layers[int(name.split('.')[1])][1][0].pos_shape
            weights[name] = value.unflatten(1, tuple(map(int, shape)))
            converted.add(name)
        elif '.mlp.' in name and name.endswith('.weight'):
            weights[name] = value.flatten(1)
            converted.add(name)
    _with_biases(weights, 'attn.qkv', 'attn.proj')
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
        drop_path_rate=_drop_path(model),
    )
    notes = ['mmdet leaves out rows and columns that fill no patch, this copy pads them: multiples of 32 are the same']
    return Reading(title, FAMILIES['InLine-PVT'], options, weights, names, converted, notes=notes, multiple=32)


# Of a ViT what must be absent: the attribute, and what it would be.
_VIT_EXTRAS = dict(
    dist_token='a distillation token',
    reg_token='register tokens',
    norm_pre='a norm before its layers',
    fc_norm='a norm after pooling',
    attn_pool='pooling by attention',
)


def pvt_from_weights(weights: Mapping[str, Tensor]) -> nn.Module:
    """mmdet's backbone of the authors' file of a PVT v1; its head, and the class token of stage 4, have no place."""
    require('mmdet')
    from mmdet.models.backbones import PyramidVisionTransformer
    from mmdet.models.backbones.pvt import pvt_convert

    places = [f'block{i + 1}.0' for i in STAGES]
    lacking = next((name for place in places if (name := f'{place}.attn.kv.weight') not in weights), None)
    if lacking:
        raise TeacherError(f'this is no PVT v1 of four stages: it has no {lacking}')
    dims = [weights[f'{place}.attn.q.weight'].shape[0] for place in places]
    heads = [dim // PVT_HEAD for dim in dims]
    if [PVT_HEAD * number for number in heads] != dims:
        raise TeacherError(f"widths {dims} are not multiples of {PVT_HEAD}, the width of a head in the authors' PVT")
    reductions = [weights.get(f'{place}.attn.sr.weight') for place in places]
    model = PyramidVisionTransformer(
        pretrain_img_size=4 * math.isqrt(weights['pos_embed1'].shape[1]),
        in_channels=weights['patch_embed1.proj.weight'].shape[1],
        embed_dims=PVT_HEAD,
        num_layers=[_depth(weights, f'block{i + 1}') for i in STAGES],
        num_heads=heads,
        sr_ratios=[1 if kernel is None else kernel.shape[-1] for kernel in reductions],
        mlp_ratios=[weights[f'{p}.mlp.fc1.weight'].shape[0] // dim for p, dim in zip(places, dims, strict=True)],
    )
    load_whole(model, pvt_convert(dict(weights)), 'the file')
    for module in model.modules():  # the authors' norms are torch's own, except for those of layers
        if type(module).__name__ in ('PatchEmbed', 'SpatialReductionAttention') and isinstance(
            getattr(module, 'norm', None), nn.LayerNorm
        ):
            module.norm.eps = 1e-5
    return model.eval()


def from_file(weights: Mapping[str, Tensor]) -> nn.Module:
    """The teacher whose published weights these are."""
    if 'pos_embed1' in weights:
        return pvt_from_weights(weights)
    if 'layers.0.blocks.0.attn.relative_position_bias_table' in weights:
        return swin_from_weights(weights)
    raise TeacherError(
        "these weights are neither the authors' of a Swin nor of a PVT v1 (their first name is "
        f'{next(iter(weights))!r}): give the config of their model as well, or timm:<name>'
    )


PVT_HEAD = 64


def read_vit(model: Any) -> Reading:
    """timm's DeiT and ViT with a class token and patches of 16."""
    title = f'timm.{type(model).__name__}'
    for name, what in _VIT_EXTRAS.items():
        extra = getattr(model, name, None)
        if extra is not None and not isinstance(extra, nn.Identity):
            raise TeacherError(f'{title} has {what} ({name}), which InLine-DeiT has not')
    block, names_of = model.blocks[0], [name for name, _ in model.named_parameters() if name.startswith('blocks.')]
    odd = next((name for name in names_of if '.'.join(name.split('.')[2:-1]) not in _VIT_BLOCK), None)
    if odd:
        raise TeacherError(f'{title} has {odd}, which InLine-DeiT has not')
    kinds = {(type(block).__name__, type(block.attn).__name__) for block in model.blocks}
    if kinds != {('Block', 'Attention')}:
        raise TeacherError(
            f"{title}: layers of {sorted(kinds)}; those of InLine-DeiT are timm's Block with its Attention"
        )
    if getattr(model, 'pool_include_prefix', False):
        raise TeacherError(f'{title} pools the class token with the others, which InLine-DeiT does not')
    if model.cls_token is None or model.pos_embed is None or model.no_embed_class:
        raise TeacherError(f'{title}: InLine-DeiT has a class token and a position of its own for it')
    weights, names = _named(model, {'patch_embed': 'embed', 'pos_embed': 'position.table'})
    size = tuple(weights['embed.proj.weight'].shape[2:])
    if size != (16, 16):
        raise TeacherError(f'{title}: patches of {size} pixels; InLine-DeiT has patches of 16 x 16')
    dim = weights['cls_token'].shape[-1]
    hidden = weights['blocks.0.mlp.fc1.weight'].shape[0]
    if hidden != 4 * dim:
        raise TeacherError(f'{title}: MLPs of {hidden / dim:g} times the width; those of InLine-DeiT have 4 times')
    grid = tuple(model.patch_embed.grid_size)
    table = weights['position.table']
    weights['cls_position'], names['cls_position'] = table[:, :1], 'pos_embed'
    weights['position.table'] = table[:, 1:].unflatten(1, grid)
    _with_biases(weights, 'attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')
    heads = block.attn.num_heads
    widths = {f'blocks.{i}.attn.': dim // heads for i in range(len(model.blocks))}
    scale_queries(weights, scale_factors(model, names, widths))
    options = dict(
        arch=Arch((dim,), (heads,), (len(model.blocks),))._asdict(),
        in_channels=weights['embed.proj.weight'].shape[1],
        img_size=(16 * grid[0], 16 * grid[1]),
        drop_path_rate=_drop_path(model),
        num_classes=_classes(title, weights),
        global_pool=model.global_pool,
    )
    converted = {'position.table', 'cls_position'}
    return Reading(title, FAMILIES['InLine-DeiT'], options, weights, names, converted, classifier=True)


_VIT_BLOCK = ('norm1', 'attn.qkv', 'attn.proj', 'norm2', 'mlp.fc1', 'mlp.fc2')

READERS: dict[tuple[str, str], Callable[[Any], Reading]] = {
    ('mmdet', 'SwinTransformer'): read_mm_swin,
    ('mmseg', 'SwinTransformer'): read_mm_swin,
    ('mmdet', 'PyramidVisionTransformer'): read_mm_pvt,
    ('timm', 'SwinTransformer'): read_timm_swin,
    ('timm', 'VisionTransformer'): read_vit,
    ('torchvision', 'SwinTransformer'): read_torchvision_swin,
    ('mmsoft', 'SOFT'): read_own,
    ('mmsoft', 'InLineSwin'): read_own,
}
