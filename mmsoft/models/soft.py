"""SOFT and SOFT++: a four-stage pyramid with softmax-free attention in stages 1 to 3.

Lu et al., "Softmax-free Linear Transformers", IJCV 2024, and "SOFT: Softmax-free Transformer with
Linear Complexity", NeurIPS 2021.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from mmsoft.layers import (
    ConvUnit,
    Landmarks,
    Mlp,
    PositionTable,
    PostNormBlock,
    PreNormBlock,
    SoftAttention,
    SoftmaxAttention,
    embedded_size,
    stem,
)
from mmsoft.ops.checks import choose, whole
from mmsoft.ops.newton import BACKWARDS

from .archs import MAX_KEYS, STRIDES, Arch, resolve_arch
from .backbone import Backbone, drop_path_rates, image_sides, init_linear
from .options import reject_unknown
from .stage import Stage, to_channels_last

ATTENTIONS = ('soft_pp', 'soft')
RATIOS = (8, 4, 2)  # landmark window of stages 1 to 3
LOCAL_KERNELS = (9, 5, 3)  # depth-wise kernel on the values, stages 1 to 3


class SOFT(Backbone):
    """The backbone for detection and segmentation; :class:`SOFTClassifier` adds a head to it.

    Args:
        arch: A name of ``archs.ARCHS`` or ``dict(dims=..., heads=..., depths=...)``.
        attn: ``'soft_pp'`` (symmetric normalisation, for any input size) or ``'soft'``.
        in_channels: Channels of the image.
        img_size: Image size whose grids the position tables have; other sizes resize them.
        num_landmarks: At most so many landmarks in stages 1 to 3 however large the image, and at
            most ``MAX_KEYS`` keys in stage 4, so that cost is linear in pixels. None: as published,
            both grow with the image.
        landmark_sampling: ``'conv'``, ``'avg_pool'``, ``'random'`` or ``'first'``.
        landmark_seed: Fixes the tokens that ``'random'`` takes in evaluation.
        newton_iters: Newton-Raphson steps for the pseudo-inverse.
        newton_backward: ``'unrolled'`` differentiates the iteration; ``'closed'`` is the paper's gradient,
            as if it had converged.
        overlap: Overlapping 3 x 3 patch embeddings, or tiling ones.
        out_indices: Stages (0 to 3) whose maps are returned; none is built after the last of them.
        frozen_stages: -1 freezes nothing, 0 the first embedding, k also the first k stages.
        norm_eval: Keep BatchNorm in evaluation mode while training.
        with_cp: Checkpoint every layer: less memory, more time.
        drop_path_rate: Stochastic depth of the last layer; it rises linearly from 0.
        init_cfg: As in MMEngine; ``dict(type='Pretrained', checkpoint=...)`` loads weights.
    """

    def __init__(
        self,
        arch: 'str | Mapping | Arch' = 'small',
        *,
        attn: str = 'soft_pp',
        in_channels: int = 3,
        img_size: int | tuple[int, int] = 224,
        num_landmarks: int | None = 49,
        landmark_sampling: str = 'conv',
        landmark_seed: int = 0,
        newton_iters: int = 20,
        newton_backward: str = 'unrolled',
        overlap: bool = True,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        norm_eval: bool = False,
        with_cp: bool = False,
        drop_path_rate: float = 0.1,
        init_cfg: dict | list | None = None,
        **unknown: Any,
    ) -> None:
        reject_unknown(type(self), unknown)
        choose('attn', attn, ATTENTIONS)
        choose('newton_backward', newton_backward, BACKWARDS)
        whole('newton_iters', newton_iters)
        whole('in_channels', in_channels)
        img_size = image_sides(img_size)
        arch = resolve_arch(arch)
        super().__init__(arch.dims, STRIDES, out_indices, frozen_stages, norm_eval, init_cfg)
        self.arch, self.attn, self.in_channels = arch, attn, in_channels

        rates = drop_path_rates(drop_path_rate, arch.depths)
        soft_block = partial(
            _soft_block,
            attn=attn,
            landmark_options=dict(num_landmarks=num_landmarks, sampling=landmark_sampling, seed=landmark_seed),
            newton_options=dict(newton_iters=newton_iters, newton_backward=newton_backward),
        )
        max_keys = None if num_landmarks is None else MAX_KEYS
        self.stages = nn.ModuleList()
        for i in range(max(self.out_indices) + 1):
            dim, heads = arch.dims[i], arch.heads[i]
            embed = ConvUnit(arch.dims[i - 1], dim, 2, overlap) if i else stem(in_channels, dim, overlap)
            if i < len(RATIOS):
                blocks = [soft_block(dim, heads, RATIOS[i], LOCAL_KERNELS[i], drop_path=rate) for rate in rates[i]]
            else:
                blocks = [_softmax_block(dim, heads, max_keys, rate) for rate in rates[i]]
            self.stages.append(Stage(embed, PositionTable(embedded_size(img_size, STRIDES[i]), dim), blocks, with_cp))
        if len(self.stages) == len(STRIDES):
            self.norm = nn.LayerNorm(arch.dims[-1], eps=1e-6)
        self.apply(init_linear)
        self.train()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return super().forward(to_channels_last(x, self.in_channels))

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        if index < len(STRIDES) - 1:
            return x
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

    def _frozen_modules(self) -> list[nn.Module]:
        frozen = super()._frozen_modules()
        return [*frozen, self.norm] if self.frozen_stages == len(STRIDES) == len(self.stages) else frozen


def _soft_block(
    dim: int,
    heads: int,
    ratio: int,
    local_kernel: int,
    drop_path: float,
    attn: str,
    landmark_options: dict[str, Any],
    newton_options: dict[str, Any],
) -> PostNormBlock:
    landmarks = Landmarks(dim // heads, ratio, **landmark_options)
    attention = SoftAttention(dim, heads, landmarks, local_kernel, normalize=attn == 'soft_pp', **newton_options)
    return PostNormBlock(dim, attention, Mlp(dim, 4 * dim, approximate='tanh'), drop_path, eps=1e-5)


def _softmax_block(dim: int, heads: int, max_keys: int | None, drop_path: float) -> PreNormBlock:
    return PreNormBlock(dim, SoftmaxAttention(dim, heads, max_keys), Mlp(dim, 4 * dim), drop_path, eps=1e-6)
