"""Classifiers of two sizes that are compared: ours, and what else a user would take."""

from collections.abc import Callable

import timm
from torch import Tensor, nn

from mmsoft.layers import Landmarks
from mmsoft.models import InLinePVTClassifier, SOFTClassifier

Builder = Callable[[int, int], nn.Module]  # classes, size of a picture -> classifier
DEPTHS = (2, 2, 2, 2)
QUARTER = dict(dims=(32, 64, 160, 256), heads=(1, 2, 5, 8), depths=DEPTHS)


class PVT(nn.Module):
    """mmdet's PVT v1 as a classifier: the mean of its last map, normalised, and a linear head."""

    def __init__(self, classes: int, size: int, width: int) -> None:
        super().__init__()
        from mmdet.models.backbones import PyramidVisionTransformer

        self.backbone = PyramidVisionTransformer(
            pretrain_img_size=size, embed_dims=width, num_layers=list(DEPTHS), out_indices=(3,), drop_path_rate=0.0
        )
        self.norm, self.head = nn.LayerNorm(8 * width), nn.Linear(8 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, 3, H, W)`` -> logits ``(B, classes)``."""
        (last,) = self.backbone(images)
        return self.head(self.norm(last.mean((2, 3))))


def of_timm(name: str, **options: object) -> Builder:
    return lambda classes, size: timm.create_model(name, num_classes=classes, **options)


def swin(width: int, depths: tuple[int, ...], part: int = 4) -> Builder:
    """Windows of a fourth (``part``) of the first map's side, which divide the maps; of an eighth, also the last."""

    def build(classes: int, size: int) -> nn.Module:
        options = dict(embed_dim=width, depths=depths, num_heads=(2, 4, 8, 16), window_size=size // (4 * part))
        model = timm.models.swin_transformer.SwinTransformer
        return model(img_size=size, num_classes=classes, drop_path_rate=0.0, strict_img_size=False, **options)

    return build


def soft(attn: str, arch: str | dict, **options: object) -> Builder:
    return lambda classes, size: SOFTClassifier(
        arch, attn=attn, num_classes=classes, img_size=size, drop_path_rate=0.0, **options
    )


def landmarks_start(build: Builder, weight: float) -> Builder:
    """With another first weight of the landmarks' LayerNorm.

    At 1 landmarks lie far from queries, which start small: P is near 0.001 everywhere, and its gradient as well.
    """

    def built(classes: int, size: int) -> nn.Module:
        model = build(classes, size)
        for module in model.modules():
            if isinstance(module, Landmarks):
                nn.init.constant_(module.norm.weight, weight)
        return model

    return built


def inline_pvt(arch: str | dict) -> Builder:
    return lambda classes, size: InLinePVTClassifier(arch, num_classes=classes, img_size=size, drop_path_rate=0.0)


def small_resnet(classes: int, size: int) -> nn.Module:
    """ResNet-18 of half its width."""
    resnet = timm.models.resnet
    return resnet.ResNet(resnet.BasicBlock, DEPTHS, num_classes=classes, channels=(32, 64, 128, 256), stem_width=32)


MODELS: dict[str, Builder] = {
    'soft_pp_tiny': soft('soft_pp', 'tiny'),
    'soft_tiny': soft('soft', 'tiny'),
    'soft_pp_tiny growing': soft('soft_pp', 'tiny', num_landmarks=None),
    'inline_pvt_tiny': inline_pvt('tiny'),
    'pvt_tiny': lambda classes, size: PVT(classes, size, 64),
    'pvt_v2_b1': of_timm('pvt_v2_b1'),
    'resnet18': of_timm('resnet18'),
    'swin_small': swin(64, (2, 2, 4, 2)),
    'soft_pp_quarter': soft('soft_pp', QUARTER),
    'soft_pp_quarter landmarks 0.5': landmarks_start(soft('soft_pp', QUARTER), 0.5),
    'soft_pp_quarter landmarks 0.3': landmarks_start(soft('soft_pp', QUARTER), 0.3),
    'soft_quarter': soft('soft', QUARTER),
    'softmax_quarter': soft('softmax', QUARTER),
    'inline_quarter': soft('inline', QUARTER),
    'inline_pvt_quarter': inline_pvt(QUARTER),
    'pvt_quarter': lambda classes, size: PVT(classes, size, 32),
    'pvt_v2_b0': of_timm('pvt_v2_b0'),
    'resnet18_half': small_resnet,
    'mobilenetv3': of_timm('mobilenetv3_large_100'),
    'swin_quarter': swin(32, (2, 2, 4, 2)),
    'swin_quarter small windows': swin(32, (2, 2, 4, 2), part=8),
}
