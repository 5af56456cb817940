"""Softmax transformers of other libraries, read: which of our architectures they are, and their weights by our names.

A reader takes a live backbone or classifier. Weights keep the teacher's attention: stacked ``qkv`` and tables of
relative positions of windows, ``reduce`` of PVT; copying.py makes a linear attention's of them.
"""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor, nn

from mmsoft.models.archs import Arch
from mmsoft.models.family import FAMILIES
from mmsoft.models.options import options_of
from mmsoft.registry import MODELS
from mmsoft.weights.files import IGNORED

from .pvt import pvt_spec, pvt_weights, read_mm_pvt
from .reading import (
    STAGES,
    Pairs,
    Reading,
    TeacherError,
    check_shapes,
    classes_of,
    depth_of,
    drop_path_of,
    load_whole,
    named,
    with_biases,
)
from .unseen import odd_part, scale_factors, scale_queries


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
    weights, names = named(model, _MM_SWIN)
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
            drop_path_rate=drop_path_of(model),
        ),
        window=first.attn.window_size,
        converted=converted,
    )


def _patches_first(value: Tensor) -> Tensor:
    """The last dimension 4 C, from (channel, row, column) of 2 x 2 patches to (column, row, channel)."""
    return value.unflatten(-1, (-1, 2, 2)).movedim(-3, -1).transpose(-2, -3).flatten(-3).contiguous()


def read_timm_swin(model: Any) -> Reading:
    """timm's, whose windows are cut for one image size."""
    weights, names = named(model, _TIMM_SWIN)
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
    options = dict(shift='all' if always else 'by_side', drop_path_rate=drop_path_of(model))
    return _swin('timm.SwinTransformer', model, weights, names, options, window, classifier=True, notes=notes)


def read_torchvision_swin(model: Any) -> Reading:
    attention = model.features[1][0].attn
    if type(attention).__name__ != 'ShiftedWindowAttention':
        raise TeacherError(f'torchvision.SwinTransformer with {type(attention).__name__} is Swin v2; give a Swin v1')
    weights, names = named(model, _TORCHVISION_SWIN)
    options = dict(shift='by_side', drop_path_rate=drop_path_of(model))
    notes = ['torchvision leaves out pixels that fill no patch, this copy pads them: multiples of 4 are the same']
    title, window = 'torchvision.SwinTransformer', attention.window_size[0]
    return _swin(title, model, weights, names, options, window, classifier=True, notes=notes, multiple=4)


def swin_spec(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The config of a model of ours with windows throughout, of the authors' file of a classifier or backbone."""
    family = FAMILIES['InLine-Swin']
    ours = family.to_ours(weights)
    tables = [name for name in ours if name.endswith('relative_position_bias_table')]
    sides = {(math.isqrt(ours[name].shape[0]) + 1) // 2 for name in tables}
    if len(sides) != 1:
        raise TeacherError(f'the windows of this Swin have sides of {sorted(sides)}; InLine-Swin has one for all')
    options: dict[str, Any] = dict(arch=dict(_swin_arch(ours), inline=(0, 0, 0, 0)), window_size=sides.pop())
    if 'head.weight' not in ours:
        return dict(type=f'mmsoft.{family.backbone.__name__}', **options)
    return dict(type=f'mmsoft.{family.classifier.__name__}', **options, num_classes=ours['head.weight'].shape[0])


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
    check_shapes(title, weights, ratios=(4,) * 4)
    if any(2 * small != large for small, large in zip(arch['dims'], arch['dims'][1:], strict=False)):
        raise TeacherError(f'{title}: widths {arch["dims"]} do not double from stage to stage, as in InLine-Swin')
    if weights['stages.0.embed.proj.weight'].shape[2:] != (4, 4):
        size = tuple(weights['stages.0.embed.proj.weight'].shape[2:])
        raise TeacherError(f'{title}: patches of {size} pixels; InLine-Swin has patches of 4 x 4')
    tables = [value for name, value in weights.items() if name.endswith('relative_position_bias_table')]
    if any(table.shape[0] != (2 * window - 1) ** 2 for table in tables):
        raise TeacherError(f'{title}: its windows differ in size; InLine-Swin has one size for all')
    with_biases(weights, 'attn.qkv', 'attn.proj')
    widths = {
        f'stages.{i}.blocks.{j}.attn.': arch['dims'][i] // arch['heads'][i]
        for i in STAGES
        for j in range(arch['depths'][i])
    }
    scale_queries(weights, scale_factors(model, names, widths))
    options = dict(arch=arch, window_size=window, in_channels=weights['stages.0.embed.proj.weight'].shape[1], **options)
    if classifier:
        options['num_classes'] = classes_of(title, weights)
    kept = set(converted) & weights.keys()
    return Reading(title, FAMILIES['InLine-Swin'], options, weights, names, kept, classifier, **rest)


def _swin_arch(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    tables = [f'stages.{i}.blocks.0.attn.relative_position_bias_table' for i in STAGES]
    lacking = next((name for name in (*tables, 'stages.0.embed.norm.weight') if name not in weights), None)
    if lacking:
        raise TeacherError(f'this is no Swin of four stages that InLine-Swin can be: it has no {lacking}')
    return dict(
        dims=tuple(weights[f'stages.{i}.blocks.0.norm1.weight'].shape[0] for i in STAGES),
        heads=tuple(weights[name].shape[1] for name in tables),
        depths=tuple(depth_of(weights, f'stages.{i}.blocks') for i in STAGES),
    )


def read_file(weights: Mapping[str, Tensor]) -> tuple[dict[str, Any], nn.Module]:
    """The config of the teacher whose published weights these are, and the teacher."""
    if 'pos_embed1' in weights:
        spec, convert = pvt_spec(weights), pvt_weights
    elif 'layers.0.blocks.0.attn.relative_position_bias_table' in weights:
        spec, convert = swin_spec(weights), FAMILIES['InLine-Swin'].to_ours
    elif any(name.startswith('backbone.') for name in weights):
        raise TeacherError('these weights are of a detector or segmentor: give its config before them')
    else:
        raise TeacherError(
            "these weights are neither the authors' of a Swin nor of a PVT v1 (their first name is "
            f'{next(iter(weights))!r}): give the config of their model as well, or timm:<name>'
        )
    model = MODELS.build(spec)
    load_whole(model, convert(weights), 'the file')
    return spec, model.eval()


def from_file(weights: Mapping[str, Tensor]) -> nn.Module:
    """The teacher whose published weights these are."""
    return read_file(weights)[1]


# Of a ViT what must be absent: the attribute, and what it would be.
_VIT_EXTRAS = dict(
    dist_token='a distillation token',
    reg_token='register tokens',
    norm_pre='a norm before its layers',
    fc_norm='a norm after pooling',
    attn_pool='pooling by attention',
)


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
    weights, names = named(model, {'patch_embed': 'embed', 'pos_embed': 'position.table'})
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
    with_biases(weights, 'attn.qkv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')
    heads = block.attn.num_heads
    widths = {f'blocks.{i}.attn.': dim // heads for i in range(len(model.blocks))}
    scale_queries(weights, scale_factors(model, names, widths))
    options = dict(
        arch=Arch((dim,), (heads,), (len(model.blocks),))._asdict(),
        in_channels=weights['embed.proj.weight'].shape[1],
        img_size=(16 * grid[0], 16 * grid[1]),
        drop_path_rate=drop_path_of(model),
        num_classes=classes_of(title, weights),
        global_pool=model.global_pool,
    )
    converted = {'position.table', 'cls_position'}
    notes = []
    if getattr(model, 'dynamic_img_size', False):
        notes = ['at other sizes than its own timm resizes positions by bicubic interpolation, this copy by bilinear']
    return Reading(title, FAMILIES['InLine-DeiT'], options, weights, names, converted, classifier=True, notes=notes)


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
