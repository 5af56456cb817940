"""What every backbone of the package shares: outputs, freezing, train mode, weight initialisation."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Backbone(nn.Module):
    """A pyramid of stages; a family supplies ``stages`` and ``_to_output``.

    ``channels`` and ``strides`` describe the maps that forward returns, in order, so that necks and
    heads can be built from them.
    """

    stages: nn.ModuleList

    def __init__(
        self,
        dims: Sequence[int],
        strides: Sequence[int],
        out_indices: Sequence[int],
        frozen_stages: int,
        norm_eval: bool,
        init_cfg: dict | list | None,
    ) -> None:
        super().__init__()
        out_indices = tuple(out_indices)
        if not out_indices or list(out_indices) != sorted(set(out_indices) & set(range(len(dims)))):
            raise ValueError(
                f'out_indices must be rising stage numbers from 0 to {len(dims) - 1}; got {list(out_indices)}'
            )
        if frozen_stages not in range(-1, len(dims) + 1):
            raise ValueError(
                f'frozen_stages must be -1 (none), 0 (the first embedding) or 1 to {len(dims)} '
                f'(that many stages as well); got {frozen_stages}'
            )
        self.out_indices = out_indices
        self.channels = tuple(dims[i] for i in out_indices)
        self.strides = tuple(strides[i] for i in out_indices)
        self.frozen_stages, self.norm_eval, self.init_cfg = frozen_stages, norm_eval, init_cfg

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Images (B, C, H, W) -> one map a chosen stage, (B, channels, H / stride, W / stride) rounded up.

        Maps are laid out channels-last in memory, which convolutions take as they are.
        """
        outputs = []
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index in self.out_indices:
                outputs.append(self._to_output(x, index))
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
        one of a classifier or detector, and the options of checkpoints.load_pretrained. Other types
        are MMEngine's initialisers.
        """
        configs = [self.init_cfg] if isinstance(self.init_cfg, dict) else list(self.init_cfg or ())
        pretrained = [cfg for cfg in configs if _is_pretrained(cfg)]
        others = [cfg for cfg in configs if not _is_pretrained(cfg)]
        if others:
            from mmengine.model import initialize

            initialize(self, others)
        for cfg in pretrained:
            # upward, and only when weights are asked for: checkpoints know models, not the reverse
            from mmsoft.checkpoints import load_pretrained

            load_pretrained(self, **{key: value for key, value in cfg.items() if key != 'type'})


def _is_pretrained(cfg: dict) -> bool:
    """MMEngine takes the initialiser by name or as its class."""
    return getattr(cfg.get('type'), '__name__', cfg.get('type')) in ('Pretrained', 'PretrainedInit')


def init_linear_and_norm(module: nn.Module) -> None:
    """Linear layers: truncated normal of std 0.02, zero bias. LayerNorm: 1 and 0 (its default)."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def drop_path_rates(rate: float, depths: Sequence[int]) -> list[list[float]]:
    """Rates that rise linearly from 0 to ``rate`` over all layers, a list a stage."""
    if not 0 <= rate < 1:
        raise ValueError(f'drop_path_rate must be at least 0 and below 1; got {rate}')
    rates = torch.linspace(0, rate, sum(depths), device='cpu').tolist()
    return [[rates.pop(0) for _ in range(depth)] for depth in depths]
