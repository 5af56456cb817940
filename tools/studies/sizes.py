"""What becomes of a classifier at other sizes than it was trained at: the paper's Table 6 on the demo's pictures."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import timm
import torch
import torch.nn.functional as F
from mmengine.config import Config
from mmengine.registry import DATASETS
from torch import Tensor

import mmsoft
from mmsoft.engine.config import load_config, set_img_size
from mmsoft.engine.demo import CLASS_SIZE
from mmsoft.engine.predict import load_model
from mmsoft.engine.training import TOP1, evaluate
from mmsoft.layers import SoftAttention
from mmsoft.ops import to_map, to_tokens

from .once import train_once
from .tables import spread

ATTENTIONS = ('soft', 'soft_pp')
# Landmarks at the training size, which is as much to 96 pixels as 49 are to 224; None lets them grow with the picture.
RULES = {'bounded': (CLASS_SIZE // 32) ** 2, 'growing': None}
SIZES = (CLASS_SIZE, 5 * CLASS_SIZE // 3, 7 * CLASS_SIZE // 3)  # 1, 1.67 and 2.33 times; Table 6 has 1, 1.71 and 2.29


class Found(NamedTuple):
    """A value a seed, by 'attention, rule' and size."""

    top1: dict[str, dict[str, list[float]]]
    growth: dict[str, dict[str, list[float]]]  # of the attention's output, over that at the training size


def study(work_dir: str | Path, seeds: Sequence[int] = (0,), arch: str = 'tiny') -> Found:
    """Train where that is not done yet, then test at all sizes with both rules."""
    found = Found({}, {})
    for attn in ATTENTIONS:
        for seed in seeds:
            folder = Path(work_dir, f'{attn}_{arch}_{seed}')
            checkpoint = train_once(_config(attn, arch), folder, seed)
            for rule, landmarks in RULES.items():
                cfg = _config(attn, arch)
                cfg.model.backbone.num_landmarks = landmarks
                metrics = evaluate(cfg, checkpoint, work_dir=str(folder), demo=True, sizes=SIZES)
                strengths = _strengths(cfg, checkpoint)
                for values, table in (
                    ({size: metrics[size][TOP1] for size in metrics}, found.top1),
                    ({size: strengths[size] / strengths[str(CLASS_SIZE)] for size in strengths}, found.growth),
                ):
                    row = table.setdefault(f'{attn}, {rule}', {size: [] for size in values})
                    for size, value in values.items():
                        row[size].append(value)
    return found


@torch.no_grad()
def _strengths(cfg: Config, checkpoint: str) -> dict[str, float]:
    """Root mean square of the softmax-free attention's output before the local term is added, by size.

    Of twelve pictures; a mean over layers on a log scale.
    """
    model, _ = load_model(cfg, checkpoint, device='cpu')
    squares = {}
    for layer in (module for module in model.modules() if isinstance(module, SoftAttention)):
        layer.register_forward_pre_hook(lambda layer, inputs: setattr(layer, 'seen', inputs))
        layer.proj.register_forward_pre_hook(
            lambda _, inputs, layer=layer: squares.setdefault(layer, []).append(_attention_alone(layer, inputs[0]))
        )
    strengths = {}
    for size in SIZES:
        set_img_size(cfg, size)
        dataset = DATASETS.build(cfg.test_dataloader.dataset)
        chosen = np.linspace(0, len(dataset) - 1, 12).round().astype(int).tolist()
        squares.clear()
        model(torch.stack([dataset[index]['inputs'] for index in chosen]))
        strengths[str(size)] = math.exp(statistics.mean(math.log(value) / 2 for (value,) in squares.values()))
    return strengths


def _attention_alone(layer: SoftAttention, joined: Tensor) -> float:
    """Mean square of what is joined to the output (B, N, C), without the local term."""
    x, grid = layer.seen
    kernels = layer.local.repeat_interleave(x.shape[2] // layer.num_heads, 0)  # (C, 1, k, k)
    local = F.conv2d(to_map(layer.v(x), grid), kernels, padding='same', groups=x.shape[2])
    return (joined - to_tokens(local)).square().mean().item()


def _config(attn: str, arch: str) -> Config:
    return load_config(mmsoft.config_path(f'{attn}_{arch}_300e_in1k'))


def study_table(found: Found) -> str:
    """Markdown: means over seeds, with their deviation where there are several."""
    sizes = list(next(iter(found.top1.values())))
    titles = [f'top-1 at {size}' for size in sizes] + [f'output at {size}' for size in sizes[1:]]
    lines = [f'| attention, landmarks | {" | ".join(titles)} |', f'|---|{"---|" * len(titles)}']
    for name, row in found.top1.items():
        cells = [spread(row[size], unit=' %') for size in sizes]
        cells += [spread(found.growth[name][size], unit=' x') for size in sizes[1:]]
        lines.append(f'| {name} | {" | ".join(cells)} |')
    return '\n'.join(lines)


def save(found: Found, path: str | Path, seeds: Sequence[int], arch: str) -> None:
    """The values with what they were measured on."""
    about = dict(arch=arch, trained_at=CLASS_SIZE, seeds=list(seeds), torch=torch.__version__, timm=timm.__version__)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(dict(**about, **found._asdict()), indent=1) + '\n')
