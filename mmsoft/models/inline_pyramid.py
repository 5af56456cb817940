"""What the InLine families with four stages share."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mmsoft.layers.inline_attention import KERNELS
from mmsoft.ops.checks import choose, flag, whole

from .archs import STRIDES
from .backbone import Backbone, drop_path_rates, image_sides, init_linear
from .inline_archs import InLineArch, resolve_inline_arch
from .inline_weights import PAPER
from .options import reject_unknown
from .stage import Stage, to_channels_last


class InLinePyramid(Backbone):
    """Four stages of pre-norm layers; a family supplies the parts of a stage.

    Args:
        arch: A name of the family's table or ``dict(dims=..., heads=..., depths=...)``,
            in families with softmax layers also ``inline=...``, how many of each stage's layers are InLine.
        kernel: What queries and keys go through: ``'identity'``, ``'relu'``, ``'leaky_relu'`` or ``'exp'``.
        in_channels: Channels of the image.
        img_size: Image size whose grids the position tables have; other sizes resize them. Families without
            tables are the same for all sizes.
        out_indices: Stages (0 to 3) whose maps are returned; none is built after the last of them.
        frozen_stages: -1 freezes nothing, 0 the first embedding, k also the first k stages.
        with_cp: Checkpoint every layer: less memory, more time.
        recompute: Whether backward computes the MLPs' hidden maps again: less memory, more time. None: on CPUs only.
        drop_path_rate: Stochastic depth of the last layer; it rises linearly from 0.
        init_cfg: As in MMEngine; ``dict(type='Pretrained', checkpoint=...)`` loads weights.
    """

    archs: Mapping[str, InLineArch]
    inline_stages = 4  # of a custom arch that does not say
    mixed = False  # whether there are softmax layers

    def __init__(
        self,
        arch: str | Mapping | InLineArch = 'tiny',
        *,
        kernel: str = 'identity',
        in_channels: int = 3,
        img_size: int | tuple[int, int] = 224,
        out_indices: Sequence[int] = (0, 1, 2, 3),
        frozen_stages: int = -1,
        with_cp: bool = False,
        recompute: bool | None = None,
        drop_path_rate: float = 0.1,
        init_cfg: dict | list | None = None,
        **unknown: Any,
    ) -> None:
        reject_unknown(type(self), unknown)
        flag('with_cp', with_cp)
        arch = resolve_inline_arch(arch, self.archs, self.inline_stages, self.mixed)
        super().__init__(arch.dims, STRIDES, out_indices, frozen_stages, False, init_cfg)
        self.arch, self.kernel, self.recompute = arch, choose('kernel', kernel, KERNELS), recompute
        self.in_channels, self.img_size = whole('in_channels', in_channels), image_sides(img_size)
        rates = drop_path_rates(drop_path_rate, arch.depths)
        self.stages = nn.ModuleList()
        for i in range(max(self.out_indices) + 1):
            blocks = [self._block(i, index, rate) for index, rate in enumerate(rates[i])]
            self.stages.append(Stage(self._embed(i), self._position(i), blocks, with_cp))
        self.norm = self._norm() if len(self.stages) == len(STRIDES) else nn.Identity()
        self.apply(init_linear)
        self.train()

    def _embed(self, stage: int) -> nn.Module:
        """What brings the map (or the image) to the stage's stride and width."""
        raise NotImplementedError

    def _position(self, stage: int) -> nn.Module:
        return nn.Identity()

    def _block(self, stage: int, index: int, drop_path: float) -> nn.Module:
        """A layer of a stage."""
        raise NotImplementedError

    def _is_inline(self, stage: int, index: int) -> bool:
        return index < self.arch.inline[stage]

    def _norm(self) -> nn.Module:
        return nn.LayerNorm(self.arch.dims[-1], eps=1e-5)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return super().forward(to_channels_last(x, self.in_channels))

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        """The last stage's map normalised by ``norm``, others without parameters.

        Sums of many pre-norm layers grow, and differ in size from stage to stage; scale and shift a
        neck's first convolution can learn.
        """
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x) if index == len(STRIDES) - 1 else F.layer_norm(x, x.shape[-1:])
        return x.permute(0, 3, 1, 2)

    def _frozen_modules(self) -> list[nn.Module]:
        frozen = super()._frozen_modules()
        return [*frozen, self.norm] if self.frozen_stages == len(STRIDES) else frozen


def timm_cfg(arch: str) -> dict[str, Any]:
    """What timm should know of a family."""
    return dict(first_conv='stages.0.embed.proj', license='apache-2.0', paper_ids=PAPER)
