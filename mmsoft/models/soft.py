"""SOFT and SOFT++: a four-stage pyramid with softmax-free attention in stages 1 to 3.

Lu et al., "Softmax-free Linear Transformers", IJCV 2024, and "SOFT: Softmax-free Transformer with
Linear Complexity", NeurIPS 2021.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mmsoft.layers import Block, ConvUnit, Mlp, PositionTable, PostNormBlock, PreNormBlock, embedded_size, stem
from mmsoft.layers.landmarks import SAMPLINGS
from mmsoft.ops.checks import choose, flag, whole
from mmsoft.ops.newton import BACKWARDS
from mmsoft.weights.messages import CheckpointError
from mmsoft.weights.renaming import flat_table, renamer, split_table
from mmsoft.weights.shapes import STAGES, Weights, depths, image_size

from .archs import MAX_KEYS, STRIDES, Arch, resolve_arch
from .attentions import ATTENTIONS, Place, Spec, build_attention, one_a_stage
from .family import Family
from .options import PyramidOptions, reject_idle
from .pyramid import Pyramid
from .stage import Stage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ['ARCHS', 'SOFT', 'SOFTClassifier']

ARCHS = {
    'tiny': Arch((64, 128, 320, 512), (2, 4, 10, 16), (1, 2, 3, 2)),
    'small': Arch((96, 192, 384, 768), (3, 6, 12, 24), (2, 2, 5, 2)),
    'medium': Arch((96, 192, 384, 768), (3, 6, 12, 24), (2, 2, 18, 2)),
    'large': Arch((128, 256, 512, 1024), (4, 8, 16, 32), (2, 2, 18, 2)),
    # the family of the NeurIPS paper, for which the authors published weights
    'small_v1': Arch((64, 128, 320, 512), (2, 4, 10, 16), (1, 3, 20, 4)),
    'medium_v1': Arch((64, 128, 288, 512), (2, 4, 9, 16), (1, 3, 29, 5)),
    'large_v1': Arch((64, 128, 320, 512), (2, 4, 10, 16), (1, 3, 40, 5)),
    'huge_v1': Arch((64, 128, 352, 512), (2, 4, 11, 16), (1, 5, 49, 5)),
}
RATIOS = (8, 4, 2, 1)  # landmark window by stage
LOCAL_KERNELS = (9, 5, 3, 3)  # depth-wise kernel on the values by stage
PLAIN_STAGE = 2  # whose width, heads, window and kernel a trunk without a pyramid has throughout, at stride 16


class SOFTOptions(PyramidOptions, total=False):
    """Of the backbone."""

    attn: Spec | Sequence[Spec]
    pyramid: bool
    num_landmarks: int | None
    landmark_sampling: str
    landmark_seed: int
    newton_iters: int
    newton_backward: str
    overlap: bool
    norm_eval: bool


class SOFT(Pyramid):
    """The backbone for detection and segmentation; options are those of :class:`Backbone` and:

    Args:
        arch: A name of ``soft.ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        attn: The attention of stages 1 to 3, beside softmax attention in stage 4; or a list of one a stage. A name,
            or ``dict(type=name, **options)``: ``'soft_pp'`` (symmetric normalisation, for any input size), ``'soft'``
            (options: symmetric=True, False gives keys a projection of their own; scaled=True, see
            ``layers.SoftAttention``), ``'softmax'`` (reduction=False, True is PVT's spatial reduction;
            symmetric=False), ``'linformer'`` (num_mixtures=49; img_size fixes its length, see its layer),
            ``'performer'`` (num_features=64, seed=0), ``'nystromformer'`` (iterations=6, sampling='avg_pool', or
            another of landmark_sampling), ``'linear'`` (kernel='elu', 'relu' or 'exp'), ``'inline'``
            (kernel='identity', 'relu', 'leaky_relu' or 'exp'; local=True), ``'rala'``, ``'mila'`` (whose
            values are the tokens: nothing but the MLP mixes channels), ``'polaformer'``. Newton's options and
            landmark_sampling below are the Gaussian two's, num_landmarks and landmark_seed nystromformer's as well.
        pyramid: False keeps one map at stride 16, with stage 3's width and heads, through all layers; all four outputs
            are at that stride, and ``attn`` is for all layers.
        num_landmarks: At most so many landmarks in stages 1 to 3 however large the image, and at
            most ``MAX_KEYS`` keys in stage 4, so that cost is linear in pixels; SOFT's attention is then scaled by the
            share of landmarks that are left. None: as published, both grow with the image.
        landmark_sampling: ``'conv'``, ``'avg_pool'``, ``'random'`` or ``'first'``.
        landmark_seed: Fixes the tokens that ``'random'`` takes in evaluation.
        newton_iters: Newton-Raphson steps for the pseudo-inverse.
        newton_backward: ``'unrolled'`` differentiates the iteration; ``'closed'`` is the paper's gradient,
            as if it had converged.
        overlap: Overlapping 3 x 3 patch embeddings, or tiling ones.
        norm_eval: Keep BatchNorm in evaluation mode while training.
    """

    def __init__(
        self,
        arch: str | Mapping | Arch = 'small',
        *,
        attn: Spec | Sequence[Spec] = 'soft_pp',
        pyramid: bool = True,
        num_landmarks: int | None = 49,
        landmark_sampling: str = 'conv',
        landmark_seed: int = 0,
        newton_iters: int = 20,
        newton_backward: str = 'unrolled',
        overlap: bool = True,
        norm_eval: bool = False,
        **options: 'Unpack[PyramidOptions]',
    ) -> None:
        for name, value in dict(pyramid=pyramid, overlap=overlap, norm_eval=norm_eval).items():
            flag(name, value)
        arch = resolve_arch(arch, ARCHS)
        dims, heads, ratios, kernels, strides = arch.dims, arch.heads, RATIOS, LOCAL_KERNELS, STRIDES
        if not pyramid:
            dims, heads, ratios, kernels, strides = (
                (values[PLAIN_STAGE],) * 4 for values in (dims, heads, ratios, kernels, strides)
            )
        super().__init__(dims, strides, arch.depths, **options)
        self.arch, self.attn, self.pyramid, self.overlap, self.norm_eval = arch, attn, pyramid, overlap, norm_eval
        specs = one_a_stage(attn, last='softmax' if pyramid else None)
        landmarks = dict(num_landmarks=num_landmarks, sampling=landmark_sampling, seed=landmark_seed)
        newton = dict(newton_iters=newton_iters, newton_backward=newton_backward)
        _check_options(specs, landmarks, newton)

        def stage(i: int, drop_paths: list[float]) -> Stage:
            grid = embedded_size(self.img_size, strides[i])
            max_keys = MAX_KEYS if pyramid and i == 3 and num_landmarks is not None else None
            first = sum(arch.depths[:i])
            place = Place(dims[i], heads[i], ratios[i], kernels[i], grid, first, max_keys, landmarks, newton)
            embed = self._embed(i)
            blocks = _blocks(place, specs[i], i == 3, drop_paths, self.recompute)
            position = PositionTable(grid, dims[i]) if i == 0 or pyramid else nn.Identity()
            return Stage(embed, position, blocks, self.with_cp)

        self.build(stage, partial(nn.LayerNorm, eps=1e-6))

    def _embed(self, stage: int) -> nn.Module:
        dims = self.stage_dims
        if stage == 0:
            return stem(self.in_channels, dims[0], self.overlap, self.stage_strides[0])
        return ConvUnit(dims[stage - 1], dims[stage], 2, self.overlap) if self.pyramid else nn.Identity()


def _check_options(specs: Sequence[Mapping[str, Any]], landmarks: Mapping[str, Any], newton: Mapping[str, Any]) -> None:
    """Raise unless the options of landmarks and Newton's iteration are valid and some attention reads them."""
    if landmarks['num_landmarks'] is not None:
        whole('num_landmarks (None means no bound)', landmarks['num_landmarks'])
    choose('landmark_sampling', landmarks['sampling'], SAMPLINGS)
    whole('landmark_seed', landmarks['seed'], 0)
    whole('newton_iters', newton['newton_iters'])
    choose('newton_backward', newton['newton_backward'], BACKWARDS)
    rows = [ATTENTIONS[spec['type']] for spec in specs]
    read = {option for row in rows for option in row.reads}
    stages = f'attn by stage is {", ".join(spec["type"] for spec in specs)}'
    for option, value in dict(newton, landmark_sampling=landmarks['sampling']).items():
        if option not in read:
            readers = ' and '.join(name for name, row in ATTENTIONS.items() if option in row.reads)
            reject_idle(SOFT, {option: value}, f'{stages}: only {readers} have it')
    if 'num_landmarks' not in read and landmarks['num_landmarks'] is not None:  # None also unbinds stage 4's keys
        reject_idle(SOFT, dict(num_landmarks=landmarks['num_landmarks']), f'{stages}: none has landmarks')
    own = [{**row.options, **spec} for row, spec in zip(rows, specs, strict=True) if 'landmark_seed' in row.reads]
    if all(options.get('sampling', landmarks['sampling']) != 'random' for options in own):
        reject_idle(SOFT, dict(landmark_seed=landmarks['seed']), "no landmarks are sampled at 'random'")


def _blocks(
    place: Place, spec: Mapping[str, Any], last: bool, drop_paths: Sequence[float], recompute: bool | None
) -> list[Block]:
    """Stages 1 to 3 normalise after each residual and take the tanh GELU, stage 4 before it and the exact one."""
    dim, blocks = place.dim, []
    for index, drop_path in enumerate(drop_paths):
        attention = build_attention(spec, place._replace(layer=place.layer + index))
        if last:
            blocks.append(PreNormBlock(dim, attention, Mlp(dim, 4 * dim, 'none', recompute), drop_path, eps=1e-6))
        else:
            blocks.append(PostNormBlock(dim, attention, Mlp(dim, 4 * dim, 'tanh', recompute), drop_path, eps=1e-5))
    return blocks


class SOFTClassifier(SOFT):
    """Images to logits through a class token in stage 4; options are the backbone's and:

    Parameters are those of the backbone plus ``cls_token``, ``cls_position`` and ``head``: a
    backbone loads a classifier's weights as they are.

    Args:
        num_classes, global_pool, drop_rate: See :meth:`Backbone.add_head`.
    """

    pools = ('token', 'avg', '')

    def __init__(
        self,
        arch: str | Mapping | Arch = 'small',
        *,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: 'Unpack[SOFTOptions]',
    ) -> None:
        super().__init__(arch, **options)
        self.add_head(num_classes, global_pool, drop_rate)
        self.cls_token = nn.Parameter(torch.empty(1, 1, self.num_features))
        self.cls_position = nn.Parameter(torch.empty(1, 1, self.num_features))
        self.num_prefix_tokens = 1
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.cls_position, std=0.02)
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(x)

    def train(self, mode: bool = True):
        """As the backbone; where all its stages are frozen, the class token is as well and only the head learns."""
        super().train(mode)
        if self.frozen_stages == len(self.stage_dims):
            for parameter in self.parameters(recurse=False):  # once they are there
                parameter.requires_grad_(False)
        return self

    def _last_stage(self, x: Tensor, output: Tensor | None) -> Tensor:
        token, position = self.cls_token, self.cls_position
        if token is None or position is None:  # pruned
            return super()._last_stage(x, output)
        return self.norm(self.stages[-1](x, (token + position).expand(x.shape[0], -1, -1)))

    def _prune_rest(self, norm: bool, head: bool) -> None:
        if head:
            self.cls_token = self.cls_position = None
            self.num_prefix_tokens = 0
        super()._prune_rest(norm, head)


# Within a layer: the authors' name, ours. ``norm``, ``head`` and ``cls_token`` have one name.
_SOFT_LAYER = {
    'att.mha.W_q': 'attn.q',
    'att.mha.W_v': 'attn.v',
    'att.mha.ff': 'attn.proj',
    'att.mha.attn.Qlandmark_op': 'attn.landmarks.conv',
    'att.mha.attn.Qnorm_act.0': 'attn.landmarks.norm',
    'att.mha.attn.conv.weight': 'attn.local',
    'att.norm1': 'norm1',
    'att.norm2': 'norm2',
    'att.ff1': 'mlp.fc1',
    'att.ff2': 'mlp.fc2',
}
_SOFTMAX_LAYER = {name: name for name in ('norm1', 'norm2', 'attn.q', 'attn.kv', 'attn.proj', 'mlp.fc1', 'mlp.fc2')}


def _pairs() -> Iterator[tuple[str, str]]:
    """(the authors' prefix, ours); ``*`` is the number of a layer."""
    for stage in range(4):
        for theirs, ours in (_SOFT_LAYER if stage < 3 else _SOFTMAX_LAYER).items():
            yield f'block{stage + 1}.*.{theirs}', f'stages.{stage}.blocks.*.{ours}'
        # the first embedding is three units of (conv, bn, relu), which the authors count through
        for unit in range(3 if stage == 0 else 1):
            for part in (0, 1):
                ours = f'{unit}.{part}' if stage == 0 else f'{part}'
                yield f'patch_embed{stage + 1}.proj.{3 * unit + part}', f'stages.{stage}.embed.{ours}'


_our_name = renamer(_pairs())
_published_name = renamer((ours, theirs) for theirs, ours in _pairs())


def _to_ours(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names -> ours; position tables become grids.

    A name that is not known passes through, so that loading can report it.
    """
    converted = {}
    for name, value in weights.items():
        if re.fullmatch(r'pos_embed[1-4]', name):
            stage, grid, leading = int(name[-1]) - 1, *split_table(name, value)
            converted[f'stages.{stage}.position.table'] = grid
            if leading is not None:
                converted['cls_position'] = leading
        else:
            converted[_our_name(name)] = value
    return converted


def _to_published(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our names -> the authors'; grids become lists of entries, the class token's before the others of the last."""
    converted = {}
    for name, value in weights.items():
        table = re.fullmatch(r'stages\.([0-3])\.position\.table', name)
        if table:
            value = flat_table(name, value)
            if table[1] == '3' and 'cls_position' in weights:
                value = torch.cat((weights['cls_position'], value), 1)
            converted[f'pos_embed{int(table[1]) + 1}'] = value
        elif name != 'cls_position':
            converted[_published_name(name)] = value
    return converted


def _img_size(weights: Weights) -> tuple[int, int]:
    pyramid = 'stages.1.position.table' in weights
    return image_size(weights, 'stages.0.position.table', STRIDES[0 if pyramid else PLAIN_STAGE])


def _options(weights: Weights) -> dict[str, Any]:
    """Of a backbone of all four stages. Heads of stage 4 leave no trace; they are as wide as those of stage 3."""
    if 'stages.0.blocks.0.attn.local' not in weights or 'stages.1.position.table' not in weights:
        raise CheckpointError(
            'the architecture of SOFT is read from the weights of attn soft and soft_pp in a pyramid alone, of which '
            'these are not: build the model with its options and load the weights into it'
        )
    tables = [weights[f'stages.{i}.position.table'].shape for i in STAGES]  # (1, h, w, C)
    dims = tuple(table[3] for table in tables)
    heads = tuple(weights[f'stages.{i}.blocks.0.attn.local'].shape[0] for i in range(3))
    return dict(
        arch=Arch(dims, (*heads, dims[3] * heads[2] // dims[2]), depths(weights)),
        in_channels=weights['stages.0.embed.0.0.weight'].shape[1],
        img_size=_img_size(weights),
    )


def _timm_cfg(arch: str) -> dict[str, Any]:
    paper = 'arXiv:2110.11945' if arch.endswith('_v1') else 'arXiv:2207.03341'
    return dict(first_conv='stages.0.embed.0.0', license='apache-2.0', paper_ids=paper)


FAMILY = Family(
    title='SOFT',
    backbone=SOFT,
    classifier=SOFTClassifier,
    archs=ARCHS,
    ours=('stages.0.position.table', 'stages.0.embed.0.0.weight'),
    options=_options,
    img_size=_img_size,
    unseen=dict(attn='soft_pp'),
    head=('cls_token', 'cls_position', 'head'),
    published=('patch_embed1.proj.0.weight', 'pos_embed1'),
    page='https://github.com/fudan-zvg/SOFT',
    fits='SOFT tiny fits soft_tiny, SOFT++ tiny soft_pp_tiny, SOFT++ small, medium and large the soft_pp_* or '
    'soft_pp_*_v1 of their size that has their shapes',
    to_ours=_to_ours,
    to_published=_to_published,
    prefixes=dict(soft=dict(attn='soft'), soft_pp=dict(attn='soft_pp')),
    unlisted=frozenset(f'soft_{arch}' for arch in ARCHS if arch.endswith('_v1')),
    timm_cfg=_timm_cfg,
)
