"""Stage by stage: how far a map's pixel sees, and a map's features as colours. For any backbone that gives maps."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from .looking import backbone_of, evaluating

SHARES = (0.5, 0.9, 0.99)


def stage_maps(model: nn.Module, image: Tensor, stages: Sequence[int] | None = None) -> dict[int, Tensor]:
    """Stage (from 1) -> map (B, C, H', W') of images (B, 3, H, W)."""
    backbone = backbone_of(model)
    if hasattr(backbone, 'forward_intermediates'):
        maps = backbone.forward_intermediates(image, intermediates_only=True)
    else:
        maps = backbone(image)
    if not isinstance(maps, (list, tuple)) or any(m.dim() != 4 for m in maps):
        raise ValueError(f'{type(backbone).__name__} gives no maps (B, C, H, W) to look at')
    found = dict(enumerate(maps, start=1))
    for stage in stages or ():
        if stage not in found:
            raise ValueError(f'stage {stage!r} gives no map; those of the model are 1 to {len(found)}')
    return {stage: m for stage, m in found.items() if stages is None or stage in stages}


def receptive_fields(
    model: nn.Module, images: Iterable[Tensor], stages: Sequence[int] | None = None
) -> dict[int, np.ndarray]:
    """Stage -> effective receptive field (H, W) of the central pixel of its map, a mean over images (1, 3, H, W).

    It is the absolute gradient, summed over colours, of the pixel's positive channels (of all of them, a LayerNorm
    would leave a constant). Luo et al., "Understanding the effective receptive field", NeurIPS 2016.
    """
    found: dict[int, list[np.ndarray]] = {}
    with evaluating(backbone_of(model)), torch.enable_grad():
        for image in images:
            leaf = image.detach().clone().requires_grad_()
            for stage, features in stage_maps(model, leaf, stages).items():
                pixel = features[:, :, features.shape[2] // 2, features.shape[3] // 2]
                (gradient,) = torch.autograd.grad(pixel.relu().sum(), leaf, retain_graph=True)
                found.setdefault(stage, []).append(gradient[0].abs().sum(0).cpu().numpy())
    if not found:
        raise ValueError('there are no pictures to look at')
    shapes = {field.shape for fields in found.values() for field in fields}
    if len(shapes) > 1:
        raise ValueError(f'a mean field needs pictures of one size as the model sees them; got {sorted(shapes)}')
    return {stage: np.mean(fields, 0) for stage, fields in found.items()}


def field_sides(field: np.ndarray, shares: Sequence[float] = SHARES) -> dict[float, float]:
    """Share of a field (H, W) -> side of the square about its centre that holds as much, over that of the image."""
    height, width = field.shape
    y, x = np.abs(np.arange(height) + 0.5 - height / 2) / height, np.abs(np.arange(width) + 0.5 - width / 2) / width
    distance = np.maximum(y[:, None], x).ravel()
    order = distance.argsort()
    held = field.ravel()[order].cumsum() / field.sum()
    return {share: float(2 * distance[order][np.searchsorted(held, min(share, held[-1]))]) for share in shares}


def pca_colours(maps: Sequence[Tensor]) -> list[np.ndarray]:
    """Maps (C, H, W) of several images -> pictures (H, W, 3) from 0 to 1, by their three main components in common."""
    tokens = torch.cat([m.detach().double().flatten(1).t() for m in maps])  # (N, C)
    centred = tokens - tokens.mean(0)
    if centred.shape[1] < 3:
        raise ValueError(f'three colours need maps of at least 3 channels; got {centred.shape[1]}')
    axes = torch.linalg.eigh(centred.t() @ centred)[1][:, -3:].flip(-1)  # (C, 3)
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()  # an axis has no sign of its own
    colours = (centred @ axes).cpu().numpy()
    low, high = np.percentile(colours, (1, 99), axis=0)
    colours = np.clip((colours - low) / np.maximum(high - low, 1e-12), 0, 1)
    sides = [tuple(m.shape[1:]) for m in maps]
    parts = np.split(colours, np.cumsum([height * width for height, width in sides])[:-1])
    return [part.reshape(*side, 3) for part, side in zip(parts, sides, strict=True)]


def feature_colours(
    model: nn.Module, images: Sequence[Tensor], stages: Sequence[int] | None = None
) -> dict[int, list[np.ndarray]]:
    """Stage -> a picture (H', W', 3) of each image's features; colours of a stage mean the same in all of them."""
    with evaluating(backbone_of(model)), torch.no_grad():
        maps = [stage_maps(model, image, stages) for image in images]
    if not maps:
        raise ValueError('there are no pictures to look at')
    return {stage: pca_colours([each[stage][0] for each in maps]) for stage in maps[0]}
