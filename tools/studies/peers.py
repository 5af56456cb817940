"""Classifiers of two sizes that are compared: ours, and what else a user would take."""

import math
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

from mmsoft.layers import InLineAttention, Landmarks, SoftAttention
from mmsoft.layers.block import PostNormBlock, PreNormBlock
from mmsoft.layers.inline_attention import KernelPredictor
from mmsoft.models import InLinePVTClassifier, SOFTClassifier

from .ablation import nothing

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


def changed(build: Builder, change: Callable[[nn.Module], None]) -> Builder:
    """With each module changed at its start."""
    return lambda classes, size: build(classes, size).apply(change)


def landmarks_start(weight: Callable[[int], float]) -> Callable[[nn.Module], None]:
    """Another first weight of the landmarks' LayerNorm, by the width of a head.

    At 1 landmarks lie far from queries, which start small: the kernel between the two is near 0, and so is its
    gradient. At ``2 / sqrt(d)`` their distance is about 1.
    """

    def change(module: nn.Module) -> None:
        if isinstance(module, Landmarks):
            nn.init.constant_(module.norm.weight, weight(module.head_dim))

    return change


def quiet_local(module: nn.Module) -> None:
    """Local terms add nothing at first: InLine's predicted kernels, SOFT's convolution."""
    if isinstance(module, KernelPredictor):
        for parameter in module[2].parameters():
            nn.init.zeros_(parameter)
    elif isinstance(module, SoftAttention):
        nn.init.zeros_(module.local)


def wide_queries(module: nn.Module) -> None:
    """Queries, and keys where they are projected, four times as long at first."""
    if isinstance(module, SoftAttention | InLineAttention):
        with torch.no_grad():
            module.q.weight.mul_(4)
            if isinstance(module, InLineAttention):
                module.kv.weight[: module.q.weight.shape[0]].mul_(4)


def silent_attention(module: nn.Module) -> None:
    """SOFT's local term alone, trained so."""
    if isinstance(module, SoftAttention):
        module._attend = nothing  # type: ignore[method-assign]


def pre_norm(module: nn.Module) -> None:
    """SOFT's stages 1 to 3 normalise before attention and MLP, as stage 4 does."""
    if isinstance(module, PostNormBlock):
        module.__class__ = PreNormBlock


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
    'soft_pp_quarter landmarks 0.5': changed(soft('soft_pp', QUARTER), landmarks_start(lambda _: 0.5)),
    'soft_pp_quarter landmarks 0.3': changed(soft('soft_pp', QUARTER), landmarks_start(lambda _: 0.3)),
    'soft_pp_quarter near landmarks': changed(soft('soft_pp', QUARTER), landmarks_start(lambda d: 2 / math.sqrt(d))),
    'soft_pp_quarter quiet local': changed(soft('soft_pp', QUARTER), quiet_local),
    'soft_pp_quarter wide queries': changed(soft('soft_pp', QUARTER), wide_queries),
    'soft_pp_quarter pre-norm': changed(soft('soft_pp', QUARTER), pre_norm),
    'soft_pp_quarter no attention': changed(soft('soft_pp', QUARTER), silent_attention),
    'soft_quarter': soft('soft', QUARTER),
    'softmax_quarter': soft('softmax', QUARTER),
    'inline_quarter': soft('inline', QUARTER),
    'inline_pvt_quarter': inline_pvt(QUARTER),
    'inline_pvt_quarter quiet local': changed(inline_pvt(QUARTER), quiet_local),
    'inline_pvt_quarter wide queries': changed(inline_pvt(QUARTER), wide_queries),
    'pvt_quarter': lambda classes, size: PVT(classes, size, 32),
    'pvt_v2_b0': of_timm('pvt_v2_b0'),
    'resnet18_half': small_resnet,
    'mobilenetv3': of_timm('mobilenetv3_large_100'),
    'swin_quarter': swin(32, (2, 2, 4, 2)),
    'swin_quarter small windows': swin(32, (2, 2, 4, 2), part=8),
}
