"""Backbones of stages, one after another."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.layers import OutputNorms
from mmsoft.ops.checks import choose

from .backbone import Backbone, init_linear
from .features import OUTPUT_FORMATS, as_format, take_indices
from .stage import Stage, to_channels_last


class Pyramid(Backbone):
    """Stages whose outputs are the maps; a family calls :meth:`build` when it knows its options."""

    norm_all = False  # whether maps before the last are normalised as well, without parameters
    eps = 1e-5  # of that norm

    def build(self, stage: Callable[[int, list[float]], Stage], norm: Callable[[int], nn.Module] = nn.Identity) -> None:
        """Make the layers: ``stage(index, drop_paths)`` up to the last output, then ``norm(dim)`` for its last map."""
        self.stages = nn.ModuleList(stage(i, self.drop_paths[i]) for i in range(self.out_indices[-1] + 1))
        self.norm = norm(self.stage_dims[-1]) if len(self.stages) == len(self.stage_dims) else nn.Identity()
        self.apply(init_linear)
        self.train()

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) -> one map a chosen stage, (B, channels, H / stride, W / stride) rounded up.

        Maps are contiguous: mmcv's RoIAlign reads any other layout as if it were (and convolutions
        pass a channels-last layout on to it).
        """
        outputs = []
        x = to_channels_last(x, self.in_channels)
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                outputs.append(self._to_output(x, index).contiguous())
        return tuple(outputs)

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        """Stage output -> feature map: the last one through ``norm``, with ``norm_all`` others normalised as well.

        Sums of many pre-norm layers grow, and differ in size from stage to stage; scale and shift a
        neck's first convolution can learn.
        """
        last = index == len(self.stage_dims) - 1
        if not last and not self.norm_all:
            return x
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x) if last else F.layer_norm(x, x.shape[-1:], eps=self.eps)
        return x.permute(0, 3, 1, 2)

    def _frozen_modules(self) -> list[nn.Module]:
        """0 the first embedding and positions, k also the first k stages."""
        if self.frozen_stages < 0:
            return []
        frozen = [self.stages[0].embed, self.stages[0].position, *self.stages[: self.frozen_stages]]
        return [*frozen, self.norm] if self.frozen_stages == len(self.stage_dims) else frozen

    def _feature_info(self) -> list[dict[str, Any]]:
        sizes = zip(self.stage_dims, self.stage_strides, strict=True)
        return [dict(num_chs=dim, reduction=stride, module=f'stages.{i}') for i, (dim, stride) in enumerate(sizes)]

    def _features(self, x: Tensor) -> Tensor:
        for stage in self.stages[:-1]:
            x = stage(x)
        return self._last_stage(x, None)

    def _last_stage(self, x: Tensor, output: Tensor | None) -> Tensor:
        """Tokens that forward_features gives, from the map before the last stage and, if known, the one after it."""
        y = self.stages[-1](x) if output is None else output
        return self.norm(y.flatten(2).transpose(1, 2))

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

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute every layer in backward, as ``with_cp``."""
        for stage in self.modules():
            if isinstance(stage, Stage):
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


class NormedPyramid(Pyramid):
    """Every map has a LayerNorm of its own; a classifier, which does not train them, has them without parameters."""

    norm_all = True
    trains_norms = True  # a classifier of the family says False

    def build_with_norms(self, stage: Callable[[int, list[float]], Stage]) -> None:
        """As :meth:`build`, with the norms."""
        self.build(stage, partial(nn.LayerNorm, eps=self.eps, elementwise_affine=False))
        if self.trains_norms:
            self.pyramid = OutputNorms(self.stage_dims, self.out_indices, self.eps)

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        if not self.trains_norms:
            return super()._to_output(x, index)
        return self.pyramid.levels[str(index)](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
