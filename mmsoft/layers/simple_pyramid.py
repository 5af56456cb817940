"""Maps of four strides from one, as ViTDet makes them.

Li et al., "Exploring Plain Vision Transformer Backbones for Object Detection", ECCV 2022.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torchvision.models.convnext import LayerNorm2d


class SimplePyramid(nn.Module):
    """One map of stride 16 to those of strides 4, 8, 16 and 32, with C / 4, C / 2, C and C channels.

    ``levels`` (0 to 3) are those wanted. The necks that follow in detectors bring them to one width.
    """

    def __init__(self, dim: int, levels: Sequence[int]) -> None:
        super().__init__()
        half = dim // 2
        build = (
            lambda: nn.Sequential(_double(dim, half), LayerNorm2d(half), nn.GELU(), _double(half, half // 2)),
            lambda: _double(dim, half),
            nn.Identity,
            lambda: nn.MaxPool2d(2, ceil_mode=True),
        )
        self.levels = nn.ModuleDict({str(level): build[level]() for level in levels})

    def forward(self, x: Tensor) -> list[Tensor]:
        """x (B, C, H, W) -> maps of 4 H, 2 H, H and H / 2 rows (rounded up)."""
        return [level(x) for level in self.levels.values()]


def _double(dim: int, out: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(dim, out, 2, stride=2)


class OutputNorms(nn.Module):
    """A LayerNorm for each map that is wanted, which the classifier that a backbone starts from has not.

    They have the place, and the name, of a pyramid: see :mod:`mmsoft.weights.fitting`.
    """

    def __init__(self, dims: Sequence[int], levels: Sequence[int], eps: float) -> None:
        super().__init__()
        self.levels = nn.ModuleDict({str(level): nn.LayerNorm(dims[level], eps=eps) for level in levels})
