"""SOFT with a classification head: the backbone itself plus a class token and a linear layer.

Its methods are those that timm expects of a model; timm itself is not needed.
"""

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.checks import choose, whole

from .archs import Arch
from .backbone import init_linear
from .soft import SOFT
from .stage import to_channels_last

POOLS = ('token', 'avg', '')


class SOFTClassifier(SOFT):
    """Images to logits through a class token in stage 4.

    Parameters are those of the backbone plus ``cls_token``, ``cls_position`` and ``head``: a
    backbone loads a classifier's weights as they are. Options are those of :class:`SOFT` and:

    Args:
        num_classes: Width of the head; 0 leaves it out, and features are returned.
        global_pool: What the head sees: ``'token'``, ``'avg'`` (the mean of the other tokens), ``''`` (all tokens).
        drop_rate: Dropout before the head.
    """

    def __init__(
        self,
        arch: 'str | Mapping | Arch' = 'small',
        *,
        num_classes: int = 1000,
        global_pool: str = 'token',
        drop_rate: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(arch, **options)
        if self.out_indices != (0, 1, 2, 3):
            raise ValueError(f'a classifier needs all four stages; got out_indices {self.out_indices}')
        whole('num_classes', num_classes, 0)
        if not isinstance(drop_rate, Real) or not 0 <= drop_rate < 1:
            raise ValueError(f'drop_rate must be at least 0 and below 1; got {drop_rate!r}')
        dims = self.stage_dims
        self.num_classes, self.drop_rate, self.in_chans = num_classes, float(drop_rate), self.in_channels
        self.global_pool = choose('global_pool', global_pool, POOLS)
        self.num_features = self.head_hidden_size = dims[-1]
        self.feature_info = [
            dict(num_chs=dim, reduction=stride, module=f'stages.{i}')
            for i, (dim, stride) in enumerate(zip(dims, self.stage_strides, strict=True))
        ]
        self.cls_token = nn.Parameter(torch.empty(1, 1, dims[-1]))
        self.cls_position = nn.Parameter(torch.empty(1, 1, dims[-1]))
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.cls_position, std=0.02)
        self.head = nn.Linear(dims[-1], num_classes) if num_classes else nn.Identity()
        init_linear(self.head)
        self.train()

    def train(self, mode: bool = True) -> 'SOFTClassifier':
        """As the backbone; where all its stages are frozen, the class token is as well and only the head learns."""
        super().train(mode)
        if self.frozen_stages == len(self.stage_dims) and getattr(self, 'cls_token', None) is not None:
            self.cls_token.requires_grad_(False)
            self.cls_position.requires_grad_(False)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> normalised tokens (B, 1 + N, dim) of stage 4, the class token first."""
        x = to_channels_last(x, self.in_channels)
        for index, stage in enumerate(self.stages):  # TorchScript cannot iterate over a part of a list
            if index < len(self.stages) - 1:
                x = stage(x)
        return self._last_stage(x)

    def _last_stage(self, x: Tensor) -> Tensor:
        """Map (B, C', H', W') before the last stage -> its normalised tokens (B, 1 + N, C)."""
        if self.cls_token is None:
            return self.norm(self.stages[-1](x).flatten(2).transpose(1, 2))
        return self.norm(self.stages[-1](x, (self.cls_token + self.cls_position).expand(x.shape[0], -1, -1)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of forward_features -> logits, or what the head would see."""
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, 0 if self.cls_token is None else 1 :].mean(1)
        x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.head(x)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; the pooling stays unless another one is named."""
        whole('num_classes', num_classes, 0)
        if global_pool is not None:
            if global_pool == 'token' and self.cls_token is None:
                raise ValueError("global_pool='token' needs the class token, which was pruned; take 'avg'")
            self.global_pool = choose('global_pool', global_pool, POOLS)
        self.num_classes = num_classes
        like = next(self.parameters())
        self.head = nn.Identity()
        if num_classes:
            self.head = nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            init_linear(self.head)
        self.head.train(self.training)

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = 'NCHW',
        intermediates_only: bool = False,
    ) -> 'list[Tensor] | tuple[Tensor, list[Tensor]]':
        """Maps of stages, as timm asks for them: of the backbone, whose stage 4 has no class token.

        ``indices``: stage numbers, the last so many, or all; ``norm``: apply the final norm to stage
        4's map; ``stop_early``: leave stages after the last map out. Unless ``intermediates_only``, also what
        forward_features gives.
        """
        choose('output_fmt', output_fmt, ('NCHW', 'NLC', 'NHWC'))
        wanted = self._take(indices)
        x = to_channels_last(x, self.in_channels)
        last, maps = len(self.stages) - 1, []
        for index, stage in enumerate(self.stages):
            if index == last and not intermediates_only:
                final = self._last_stage(x)
            if index > wanted[-1] and (stop_early or intermediates_only):
                break
            if index < last or index in wanted:
                x = stage(x)
            if index in wanted:
                maps.append(self._to_output(x, index) if norm else x)
        maps = [_as_format(m, output_fmt) for m in maps]
        if intermediates_only:
            return maps
        return (x.flatten(2).transpose(1, 2) if wanted[-1] < last and stop_early else final), maps

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the maps of these stages do not need; their numbers."""
        wanted = self._take(indices)
        shortened = wanted[-1] < len(self.stages) - 1
        self.stages = self.stages[: wanted[-1] + 1]
        if shortened:
            self.num_features = self.head_hidden_size = self.stage_dims[wanted[-1]]
        if shortened or prune_norm:
            self.norm = nn.Identity()
        if shortened or prune_head:
            self.cls_token = self.cls_position = None
            self.reset_classifier(0, '')
        return wanted

    def _take(self, indices: int | Sequence[int] | None) -> list[int]:
        """Stage numbers, rising, from what timm allows: a list with negative ones, or the last so many."""
        count = len(self.stages)
        if indices is None:
            return list(range(count))
        wanted = range(-indices, 0) if isinstance(indices, int) else indices
        if not len(wanted) or any(not -count <= index < count for index in wanted):
            raise ValueError(
                f'indices must be stage numbers below {count}, or how many of the last ones; got {indices!r}'
            )
        return sorted({index % count for index in wanted})

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute every layer in backward, as ``with_cp``."""
        for stage in self.stages:
            stage.with_cp = enable

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Patterns that order parameters by depth, for layer-wise learning rates."""
        stem = r'^cls_token|^cls_position|^stages\.0\.(?:embed|position)'
        if coarse:
            return dict(stem=stem, blocks=r'^stages\.(\d+)')
        return dict(
            stem=stem,
            blocks=[
                (r'^stages\.(\d+)\.(?:embed|position)', (0,)),
                (r'^stages\.(\d+)\.blocks\.(\d+)', None),
                (r'^norm', (99999,)),
            ],
        )

    def no_weight_decay(self) -> set[str]:
        """Parameters that are neither matrices nor filters: the class token and the position tables."""
        tables = {name for name, _ in self.named_parameters() if name.endswith('position.table')}
        return tables | ({'cls_token', 'cls_position'} if self.cls_token is not None else set())


def _as_format(x: Tensor, output_fmt: str) -> Tensor:
    """(B, C, H, W) as it is, as (B, H, W, C) or as (B, H * W, C)."""
    if output_fmt == 'NHWC':
        return x.permute(0, 2, 3, 1)
    return x.flatten(2).transpose(1, 2) if output_fmt == 'NLC' else x.contiguous()
