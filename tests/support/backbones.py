"""Every registered model, narrow, and what tests of several rooms do with models and layers."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

# what stands in docs/ as an example goes through all that holds for our own
import own_attention  # noqa: F401
import own_family  # noqa: F401
import torch
from helpers import MINI
from torch import Tensor, nn

import mmsoft

OTHERS = ['inline', dict(type='softmax', reduction=True), dict(type='soft_pp', symmetric=False), 'softmax']
MIXED = ['linformer', 'performer', 'nystromformer', 'linear']
# torch 2.6 notes that a size that slices let through is not the largest integer, and asks for a bound that says so
BATCH = torch.export.Dim('batch', max=4096)
FOUR = dict(dims=(16, 32, 64, 128), heads=(2, 2, 4, 8))  # widths double, as patch merging does


class Case(NamedTuple):
    """A family with a narrow architecture; ``channels`` of its maps; ``name`` of a timm entry."""

    family: str
    arch: dict[str, tuple[int, ...]]
    channels: tuple[int, ...]
    name: str
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def backbone(self) -> type[nn.Module]:
        return getattr(mmsoft, self.family)

    @property
    def classifier(self) -> type[nn.Module]:
        return getattr(mmsoft, f'{self.family}Classifier')

    @property
    def has_landmarks(self) -> bool:
        """Whether options of SOFT's own landmarks have an effect."""
        return self.name.startswith('soft') and self.options.get('attn') not in (MIXED, 'efficient')

    @property
    def short(self) -> dict[str, int]:
        """Options with which graphs are of fewer like parts: each of Newton's iterations stands in them."""
        return dict(newton_iters=4) if self.has_landmarks else {}

    @property
    def own_parts(self) -> tuple[set[str], set[str]]:
        """First parts of the names that only the classifier has, and those that only the backbone has."""
        heads = set(next(f for f in mmsoft.models.FAMILIES.values() if f.backbone is self.backbone).head)
        return heads, {'pyramid'} if self.family in ('InLineDeiT', 'MILA', 'RAVLT') else set()

    def build(self, **options: Any) -> nn.Module:
        return self.backbone(**{**dict(arch=self.arch, drop_path_rate=0.0), **self.options, **options})

    def classify(self, **options: Any) -> nn.Module:
        return self.classifier(**{**dict(arch=self.arch, drop_path_rate=0.0), **self.options, **options})


CASES = {
    'soft': Case('SOFT', MINI, MINI['dims'], 'soft_tiny', dict(attn='soft')),
    'soft_pp': Case('SOFT', MINI, MINI['dims'], 'soft_pp_tiny'),
    'soft_mixed': Case('SOFT', MINI, MINI['dims'], 'soft_pp_tiny', dict(attn=MIXED)),
    'soft_others': Case('SOFT', MINI, MINI['dims'], 'soft_pp_tiny', dict(attn=OTHERS)),
    'inline_pvt': Case('InLinePVT', MINI, MINI['dims'], 'inline_pvt_tiny'),
    # in stage 3 InLine, then shifted windows, then plain ones
    'inline_swin': Case(
        'InLineSwin', dict(FOUR, depths=(1, 1, 3, 2), inline=(1, 1, 1, 0)), FOUR['dims'], 'inline_swin_tiny'
    ),
    'inline_deit': Case('InLineDeiT', dict(dims=(32,), heads=(2,), depths=(3,)), (8, 16, 32, 32), 'inline_deit_tiny'),
    'inline_cswin': Case('InLineCSwin', dict(FOUR, depths=(1, 1, 2, 1)), FOUR['dims'], 'inline_cswin_tiny'),
    'mila': Case('MILA', dict(MINI, heads=(2, 2, 3, 4)), MINI['dims'], 'mila_tiny'),
    'ravlt': Case('RAVLT', MINI, MINI['dims'], 'ravlt_tiny'),
    'ravlt_linear': Case('RAVLT', MINI, MINI['dims'], 'ravlt_tiny', dict(linear=True)),
    'own_attention': Case('SOFT', MINI, MINI['dims'], 'soft_pp_tiny', dict(attn='efficient')),
    'own_family': Case('ConvFormer', dict(MINI, heads=(1, 1, 1, 1)), MINI['dims'], 'convformer_tiny'),
}


class OnGrid(nn.Module):
    """An attention on one grid, called with tokens alone."""

    def __init__(self, attention: nn.Module, grid: tuple[int, int]) -> None:
        super().__init__()
        self.attention, self.grid = attention, grid

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, self.grid)


def exported_for_any_batch(model: nn.Module, x: Tensor) -> Callable[[Tensor], Tensor]:
    """``model`` exported with the batch size of x left open."""
    return torch.export.export(model, (x,), dynamic_shapes=({0: BATCH},)).module()
