"""Time and peak memory of backbones, side by side in one run."""

import multiprocessing
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmsoft.versions import require


def build_backbone(name: str) -> nn.Module:
    """``soft_pp_small``, ``soft_tiny``, ... or mmdet's ``swin_tiny``, in evaluation mode."""
    if name == 'swin_tiny':
        require('mmcv', 'mmdet')
        from mmdet.models.backbones import SwinTransformer

        model = SwinTransformer()
    else:
        from mmsoft.models import ARCHS, SOFT

        variants = {f'{attn}_{arch}': dict(arch=arch, attn=attn) for attn in ('soft', 'soft_pp') for arch in ARCHS}
        if name not in variants:
            raise ValueError(f'backbone {name!r} is unknown; choose swin_tiny or one of {", ".join(variants)}')
        model = SOFT(**variants[name])
    model.eval()
    return model


def time_interleaved(cases: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every round of every case, run in turn so that noise meets all alike; one warm-up round."""
    seconds = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def forward_case(name: str, size: tuple[int, int], repeats: int = 1) -> Callable[[], None]:
    """A forward pass, ``repeats`` times, of one random image."""
    model, image = build_backbone(name), torch.randn(1, 3, *size)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(repeats):
                model(image)

    return run


def peak_memory(name: str, size: tuple[int, int], threads: int, samples: int = 5) -> float:
    """MiB that a first forward pass adds to a process of its own at its peak: median of some processes."""
    peaks = []
    for _ in range(samples):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:
            peaks.append(pool.submit(_peak_in_this_process, name, size, threads).result())
    return statistics.median(peaks)


def _peak_in_this_process(name: str, size: tuple[int, int], threads: int) -> float:
    torch.set_num_threads(threads)
    model, image = build_backbone(name), torch.randn(1, 3, *size)
    with torch.inference_mode():
        model(torch.randn(1, 3, 64, 64))  # libraries load and weights are packed before the measurement
        Path('/proc/self/clear_refs').write_text('5')  # resets the high-water mark
        before = _status('VmRSS')
        model(image)
    return _status('VmHWM') - before


def _status(key: str) -> float:
    line = next(line for line in Path('/proc/self/status').read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) / 1024


def dense_figures(ours: str = 'soft_pp_small', peer: str = 'swin_tiny', rounds: int = 9, threads: int = 2) -> dict:
    """The figures at 800 x 1344: time and memory against the peer, time a pixel against 224 x 224."""
    large, small = (800, 1344), (224, 224)
    torch.set_num_threads(threads)
    repeats = 8
    seconds = time_interleaved(
        {
            'ours': forward_case(ours, large),
            'peer': forward_case(peer, large),
            'ours_224': forward_case(ours, small, repeats),
        },
        rounds,
    )
    median = {name: statistics.median(values) for name, values in seconds.items()}
    median['ours_224'] /= repeats
    pixels = large[0] * large[1] / (small[0] * small[1])
    memory = {name: peak_memory(name, large, threads) for name in (ours, peer)}
    ratios = sorted(a / b for a, b in zip(seconds['ours'], seconds['peer'], strict=True))
    return dict(
        machine=machine(threads),
        ours=ours,
        peer=peer,
        forward_seconds=median,
        forward_ratio=median['ours'] / median['peer'],
        forward_ratio_range=[ratios[0], ratios[-1]],
        time_a_pixel_ratio=median['ours'] / median['ours_224'] / pixels,
        peak_mib=memory,
        memory_ratio=memory[ours] / memory[peer],
    )


def machine(threads: int) -> dict[str, Any]:
    """What the numbers were measured on."""
    info = Path('/proc/cpuinfo')
    names = re.findall(r'model name\s*:\s*(.+)', info.read_text()) if info.is_file() else []
    return dict(
        cpu=names[0] if names else platform.processor(),
        threads=threads,
        python=platform.python_version(),
        torch=torch.__version__,
    )
