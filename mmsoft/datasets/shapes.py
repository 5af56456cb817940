"""A small classification world: one of eight shapes, somewhere, over noise and clutter."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Masks over shape coordinates (u, v) in about [-1, 1].
SHAPES = {
    'disc': lambda u, v: u**2 + v**2 < 0.8,
    'ring': lambda u, v: ((u**2 + v**2) < 1) & ((u**2 + v**2) > 0.4),
    'square': lambda u, v: torch.maximum(u.abs(), v.abs()) < 0.8,
    'frame': lambda u, v: (torch.maximum(u.abs(), v.abs()) < 0.9) & (torch.maximum(u.abs(), v.abs()) > 0.55),
    'triangle': lambda u, v: (v > -0.7) & (v + 1.9 * u.abs() < 0.95),
    'cross': lambda u, v: (torch.minimum(u.abs(), v.abs()) < 0.28) & (torch.maximum(u.abs(), v.abs()) < 1),
    'bar': lambda u, v: (u.abs() < 0.33) & (v.abs() < 1),
    'moon': lambda u, v: (u**2 + v**2 < 1) & ((u - 0.55) ** 2 + v**2 > 0.6),
}


def draw_shapes(count: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (count, 3, size, size), about zero mean and unit range, and labels (count,) into SHAPES."""
    labels = torch.randint(len(SHAPES), (count,), generator=generator)
    masks = list(SHAPES.values())
    axis = torch.linspace(-1, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing='ij')
    coarse = torch.randn(count, 3, 6, 6, generator=generator)
    images = 0.25 * F.interpolate(coarse, size=(size, size), mode='bicubic')
    images += 0.1 * torch.randn(images.shape, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        for _ in range(2):  # clutter: small discs
            cx, cy, radius = torch.rand(3, generator=generator).tolist()
            patch = (x - 2 * cx + 1) ** 2 + (y - 2 * cy + 1) ** 2 < (0.04 + 0.04 * radius) ** 2
            image[:, patch] = torch.randn(3, 1, generator=generator)
        cx, cy, radius, turn = torch.rand(4, generator=generator).tolist()
        scale, angle = 0.4 + 0.2 * radius, 0.6 * (turn - 0.5)
        dx, dy = (x - 0.8 * (cx - 0.5)) / scale, (y - 0.8 * (cy - 0.5)) / scale
        u, v = math.cos(angle) * dx + math.sin(angle) * dy, math.cos(angle) * dy - math.sin(angle) * dx
        image[:, masks[label](u, v)] += 1.5 + 0.3 * torch.randn(3, 1, generator=generator)
    return images, labels
