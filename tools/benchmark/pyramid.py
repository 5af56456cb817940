"""One small pyramid, in which attentions are compared with nothing else changed (the paper's Table 2)."""

import math
from typing import Any

import torch

from mmsoft.models import SOFT, SOFTClassifier

from .cases import NUM_LANDMARKS, SPECS, Case, Work, as_task

ARCH = dict(dims=(32, 64, 160, 256), heads=(1, 2, 5, 8), depths=(1, 1, 2, 1))
DENSE_SIDE = 384  # larger images are those of detectors, which have no class token and no head


def attention_at(name: str, size: tuple[int, int]) -> dict[str, Any]:
    """The ``attn`` option by this name; Linformer mixes as many keys as there are landmarks at this image size."""
    spec = dict(SPECS.get(name, dict(type=name)))
    if spec['type'] == 'linformer':
        spec['num_mixtures'] = min(math.ceil(size[0] / 32) * math.ceil(size[1] / 32), NUM_LANDMARKS)
    return spec


def build_pyramid(case: Case, device: str) -> Work:
    """The classifier, or for large images the backbone."""
    dense = max(case.size) > DENSE_SIDE
    options = dict(attn=attention_at(case.part, case.size), img_size=case.size, drop_path_rate=0.0)
    model = (SOFT if dense else SOFTClassifier)(ARCH, **options).to(device).train(case.task == 'train')
    forward = model if dense else lambda images: (model(images),)
    return Work(model, lambda size: torch.randn(case.batch, 3, *size, device=device), as_task(case, forward))
