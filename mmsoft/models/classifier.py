"""Classification heads on backbones: what is common to all families.

The methods are those that timm expects of a model; timm itself is not needed.
"""

from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.ops.checks import choose, whole

from .backbone import init_linear
from .stage import to_channels_last

OUTPUT_FORMATS = ('NCHW', 'NLC', 'NHWC')
# Parameters that are tables, not filters: weight decay leaves them alone.
TABLES = ('position.table', 'relative_position_bias_table', 'cls_token', 'cls_position')


class Classifier(nn.Module):
    """Images to logits; ``class FamilyClassifier(Classifier, Family)`` adds it to a backbone.

    A pyramid of stages needs no more; other families say otherwise how features, and maps between
    layers, come about. Options are those of the backbone and:

    Args:
        num_classes: Width of the head; 0 leaves it out, and features are returned.
        global_pool: What the head sees, the first of ``pools`` by default: ``'token'`` the class token,
            ``'avg'`` the mean of the other tokens, ``''`` all tokens.
        drop_rate: Dropout before the head.
    """

    pools = ('avg', '')

    def __init__(
        self,
        *args: Any,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        if self.out_indices != (0, 1, 2, 3):
            raise ValueError(f'a classifier needs all four stages; got out_indices {self.out_indices}')
        whole('num_classes', num_classes, 0)
        if not isinstance(drop_rate, Real) or not 0 <= drop_rate < 1:
            raise ValueError(f'drop_rate must be at least 0 and below 1; got {drop_rate!r}')
        dims = self.stage_dims
        self.num_classes, self.drop_rate, self.in_chans = num_classes, float(drop_rate), self.in_channels
        self.global_pool = choose('global_pool', self.pools[0] if global_pool is None else global_pool, self.pools)
        self.num_features = self.head_hidden_size = dims[-1]
        self.num_prefix_tokens = 0  # class tokens before those of the grid
        self.feature_info = [
            dict(num_chs=dim, reduction=stride, module=f'stages.{i}')
            for i, (dim, stride) in enumerate(zip(dims, self.stage_strides, strict=True))
        ]
        self.head = nn.Linear(dims[-1], num_classes) if num_classes else nn.Identity()
        init_linear(self.head)

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> logits (B, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) -> normalised tokens (B, N, dim) of the last stage, class token first if there is one."""
        return self._features(to_channels_last(x, self.in_channels))

    def _features(self, x: Tensor) -> Tensor:
        for stage in self.stages[:-1]:
            x = stage(x)
        return self._last_stage(x, None)

    def _last_stage(self, x: Tensor, output: Tensor | None) -> Tensor:
        """Tokens that forward_features gives, from the map before the last stage and, if known, the one after it."""
        if output is None:
            output = self.stages[-1](x)
        return self.norm(output.flatten(2).transpose(1, 2))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens of forward_features -> logits, or what the head would see."""
        if self.global_pool == 'token':
            x = x[:, 0]
        elif self.global_pool == 'avg':
            x = x[:, self.num_prefix_tokens :].mean(1)
        x = F.dropout(x, self.drop_rate, self.training)
        return x if pre_logits else self.head(x)

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head; the pooling stays unless another one is named."""
        whole('num_classes', num_classes, 0)
        if global_pool is not None:
            if choose('global_pool', global_pool, self.pools) == 'token' and not self.num_prefix_tokens:
                raise ValueError("global_pool='token' needs the class token, which was pruned; take 'avg'")
            self.global_pool = global_pool
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
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Maps of stages, as timm asks for them: those of the backbone, which has no class token in a pyramid.

        ``indices``: stage numbers, the last so many, or all; ``norm``: normalise as the backbone
        does; ``stop_early``: leave stages after the last map out. Unless ``intermediates_only``, also what
        forward_features gives.
        """
        choose('output_fmt', output_fmt, OUTPUT_FORMATS)
        wanted = take_indices(indices, len(self.stages))
        x = to_channels_last(x, self.in_channels)
        last, maps = len(self.stages) - 1, []
        for index, stage in enumerate(self.stages):
            if index > wanted[-1] and (stop_early or intermediates_only):
                break
            before = x
            if index < last or index in wanted:
                x = stage(x)
            if index in wanted:
                maps.append(self._to_output(x, index) if norm else x)
            if index == last and not intermediates_only:
                final = self._last_stage(before, x if index in wanted else None)
        maps = [as_format(m, output_fmt) for m in maps]
        if intermediates_only:
            return maps
        return (x.flatten(2).transpose(1, 2) if wanted[-1] < last and stop_early else final), maps

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop what the maps of these stages do not need; their numbers."""
        wanted = take_indices(indices, len(self.stages))
        shortened = wanted[-1] < len(self.stages) - 1
        self.stages = self.stages[: wanted[-1] + 1]
        if shortened:
            self.num_features = self.head_hidden_size = self.stage_dims[wanted[-1]]
        self._prune_rest(prune_norm or shortened, prune_head or shortened)
        return wanted

    def _prune_rest(self, norm: bool, head: bool) -> None:
        if norm:
            self.norm = nn.Identity()
        if head:
            self.reset_classifier(0, '')

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
        """Parameters that are neither matrices nor filters: class token and tables."""
        return {name for name, _ in self.named_parameters() if name.endswith(TABLES)}


def take_indices(indices: int | Sequence[int] | None, count: int, what: str = 'stage') -> list[int]:
    """Numbers below ``count``, rising, from what timm allows: a list with negative ones, the last so many, or all."""
    if indices is None:
        return list(range(count))
    wanted = range(-indices, 0) if isinstance(indices, int) else indices
    if not len(wanted) or any(not -count <= index < count for index in wanted):
        raise ValueError(f'indices must be {what} numbers below {count}, or how many of the last ones; got {indices!r}')
    return sorted({index % count for index in wanted})


def as_format(x: Tensor, output_fmt: str) -> Tensor:
    """(B, C, H, W) as it is, as (B, H, W, C) or as (B, H * W, C)."""
    if output_fmt == 'NHWC':
        return x.permute(0, 2, 3, 1)
    return x.flatten(2).transpose(1, 2) if output_fmt == 'NLC' else x.contiguous()
