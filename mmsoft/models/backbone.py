"""What every backbone of the package shares: outputs, freezing, train mode, weight initialisation."""

from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from mmsoft.ops.checks import whole

from .checkpoint import Checkpoint


class Backbone(nn.Module):
    """A pyramid of stages; a family supplies ``stages`` and ``_to_output``.

    ``channels`` and ``strides`` describe the maps that forward returns, in order, so that necks and
    heads can be built from them. ``layers``: where one stage is all there is, how many may freeze;
    ``freezable`` is the largest ``frozen_stages``.
    """

    def __init__(
        self,
        dims: Sequence[int],
        strides: Sequence[int],
        out_indices: Sequence[int],
        frozen_stages: int,
        norm_eval: bool,
        init_cfg: dict | list | None,
        layers: int | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(out_indices, Sequence):
            raise ValueError(f'out_indices must be a list of stage numbers; got {out_indices!r}')
        out_indices = tuple(out_indices)
        if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(len(dims)))):
            raise ValueError(
                f'out_indices must be rising stage numbers from 0 to {len(dims) - 1}; got {list(out_indices)}'
            )
        built = layers or max(out_indices) + 1
        if frozen_stages not in range(-1, built + 1):
            what = 'layers' if layers else 'stages as well, of those up to the last output'
            raise ValueError(
                f'frozen_stages must be -1 (none), 0 (the first embedding) or 1 to {built} '
                f'(that many {what}); got {frozen_stages!r}'
            )
        self.out_indices, self.stage_dims, self.stage_strides = out_indices, tuple(dims), tuple(strides)
        self.channels = tuple(dims[i] for i in out_indices)
        self.strides = tuple(strides[i] for i in out_indices)
        self.frozen_stages, self.freezable = frozen_stages, built
        self.norm_eval, self.init_cfg = norm_eval, init_cfg

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) -> one map a chosen stage, (B, channels, H / stride, W / stride) rounded up.

        Maps are contiguous: mmcv's RoIAlign reads any other layout as if it were (and convolutions
        pass a channels-last layout on to it).
        """
        outputs = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                outputs.append(self._to_output(x, index).contiguous())
        return tuple(outputs)

    def _to_output(self, x: Tensor, index: int) -> Tensor:
        """Stage output -> feature map."""
        return x

    def _frozen_modules(self) -> list[nn.Module]:
        """Modules that ``frozen_stages`` freezes: 0 the first embedding, k also the first k stages."""
        if self.frozen_stages < 0:
            return []
        return [self.stages[0].embed, self.stages[0].position, *self.stages[: self.frozen_stages]]

    def train(self, mode: bool = True) -> 'Backbone':
        """Set the mode, but keep frozen stages, and with ``norm_eval`` every BatchNorm, in evaluation."""
        super().train(mode)
        for module in self._frozen_modules():
            module.eval().requires_grad_(False)
        if mode and self.norm_eval:
            for module in self.modules():
                if isinstance(module, _BatchNorm):
                    module.eval()
        return self

    def init_weights(self) -> None:
        """Load or initialise as ``init_cfg`` says; without one, keep the random start of construction.

        ``dict(type='Pretrained', checkpoint=...)`` takes a published file, one of this package, or
        one of a classifier or detector, and the options of :class:`Checkpoint`: trust, prefix, ... Other types
        are MMEngine's initialisers.
        """
        configs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        for cfg in configs:
            if not isinstance(cfg, dict) or 'type' not in cfg or (is_pretrained(cfg) and 'checkpoint' not in cfg):
                raise ValueError(
                    "init_cfg is a dict such as dict(type='Pretrained', checkpoint='file.pth'), or a list of them; "
                    f'got {self.init_cfg!r}'
                )
        pretrained = [cfg for cfg in configs if is_pretrained(cfg)]
        others = [cfg for cfg in configs if not is_pretrained(cfg)]
        if others:
            from mmengine.model import initialize

            initialize(self, others)
        for cfg in pretrained:
            # map_location is MMEngine's: files are read on the CPU and copied to where the model is
            options = {key: value for key, value in cfg.items() if key not in ('type', 'map_location')}
            source, trust = options.pop('checkpoint'), options.pop('trust', False)
            Checkpoint.open(source, trust).load_into(self, **options)


def is_pretrained(cfg: dict) -> bool:
    """MMEngine takes the initialiser by name or as its class."""
    return getattr(cfg.get('type'), '__name__', cfg.get('type')) in ('Pretrained', 'PretrainedInit')


def init_linear(module: nn.Module) -> None:
    """Linear layers: truncated normal of std 0.02, zero bias."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def image_sides(img_size: int | Sequence[int]) -> tuple[int, int]:
    """(height, width) from an ``img_size`` option: one side, or both."""
    pair = tuple(img_size) if isinstance(img_size, Sequence) and len(img_size) == 2 else (img_size,) * 2
    for side in pair:
        whole('img_size, or each side of a pair,', side)
    return pair


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates that rise linearly from 0 to ``rate`` over all layers, a list a stage."""
    if not isinstance(rate, Real) or not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be at least 0 and below 1; got {rate!r}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [[rates.pop(0) for _ in range(depth)] for depth in depths]
