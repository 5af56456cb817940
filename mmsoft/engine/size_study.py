"""What becomes of a classifier at other sizes than it was trained at: the paper's Table 6 on the demo's pictures."""

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from mmengine.config import Config

import mmsoft

from .config import load_config
from .demo import CLASS_SIZE
from .runner import latest_checkpoint
from .training import TOP1, evaluate, train

ATTENTIONS = ('soft', 'soft_pp')
# Landmarks at the training size, which is as much to 96 pixels as 49 are to 224; None lets them grow with the picture.
RULES = {'at most as many as in training': (CLASS_SIZE // 32) ** 2, 'growing with the picture': None}
SIZES = (CLASS_SIZE, 5 * CLASS_SIZE // 3, 7 * CLASS_SIZE // 3)  # 1, 1.67 and 2.33 times; Table 6 has 1, 1.71 and 2.29


def study(work_dir: str | Path, seeds: Sequence[int] = (0,), arch: str = 'tiny') -> dict[str, dict[str, list[float]]]:
    """Train where that is not done yet; top-1 by attention and rule, by size, a value a seed."""
    found = {}
    for attn in ATTENTIONS:
        for seed in seeds:
            folder = Path(work_dir, f'{attn}_{seed}')
            if not (folder / 'done').is_file():
                train(_config(attn, arch), work_dir=str(folder), demo=True, seed=seed, resume='auto')
                (folder / 'done').touch()
            for rule, landmarks in RULES.items():
                cfg = _config(attn, arch)
                cfg.model.backbone.num_landmarks = landmarks
                metrics = evaluate(cfg, str(latest_checkpoint(folder)), work_dir=str(folder), demo=True, sizes=SIZES)
                row = found.setdefault(f'{attn}, landmarks {rule}', {size: [] for size in metrics})
                for size, values in metrics.items():
                    row[size].append(values[TOP1])
    return found


def _config(attn: str, arch: str) -> Config:
    return load_config(mmsoft.config_path(f'{attn}_{arch}_300e_in1k'))


def study_table(found: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Markdown: means over seeds, with their deviation where there are several."""
    sizes = list(next(iter(found.values())))
    lines = [f'| top-1, % | {" | ".join(f"{size} x {size}" for size in sizes)} |', f'|---|{"---|" * len(sizes)}']
    for name, row in found.items():
        lines.append(f'| {name} | {" | ".join(_cell(row[size]) for size in sizes)} |')
    return '\n'.join(lines)


def _cell(values: Sequence[float]) -> str:
    spread = f' ± {statistics.stdev(values):.1f}' if len(values) > 1 else ''
    return f'{statistics.mean(values):.1f}{spread}'


def save(found: Mapping[str, Mapping[str, Sequence[float]]], path: str | Path, seeds: Sequence[int]) -> None:
    """The values with what they were measured on."""
    about = dict(torch=torch.__version__, machine=platform.machine(), seeds=list(seeds), trained_at=CLASS_SIZE)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(dict(**about, top1=found), indent=1) + '\n')
