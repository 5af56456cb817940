"""Time predicted from launches, bytes and multiply-adds: the formula, GPUs by their data sheets, and this CPU."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .counter import Asked

FORMULA = (
    'time = max(launches x launch cost, bytes / bandwidth + 2 x multiply-adds / peak). A CUDA graph costs no launch; '
    'bf16 halves bytes and has the peak of tensor cores, fp32 that without them. Bandwidth and peaks are those that '
    'makers publish; a launch is taken to cost the host 7 microseconds. Real kernels reach part of the peaks; caches '
    'save some of the bytes.'
)


class Machine(NamedTuple):
    """Bytes a second, fp32 and bf16 operations a second (a multiply-add is two), seconds a launch."""

    bandwidth: float
    peak: float
    half_peak: float
    launch: float = 7e-6


# The makers' peak figures, which no program reaches: memory bandwidth; fp32 without tensor cores; bf16 with them, dense
# (data sheets often name twice that, with sparsity) and accumulated in fp32.
GPUS = {
    'A100 SXM 80 GB': Machine(2039e9, 19.5e12, 312e12),
    'H100 SXM': Machine(3350e9, 66.9e12, 989e12),
    'RTX 4090': Machine(1008e9, 82.6e12, 165e12),
    'L4': Machine(300e9, 30.3e12, 121e12),
}
MEGABYTES, SIDE, SMALL, CALLS = 256, 1024, 64, 2000  # of the copy, the product, the small sum and its repetitions


def predicted(asked: Asked, on: Machine) -> dict[str, float]:
    """Seconds: eager in both precisions, and as a CUDA graph in bf16."""
    launches, moving, products = asked.launches * on.launch, asked.bytes_moved / on.bandwidth, 2 * asked.macs
    half = moving / 2 + products / on.half_peak
    return dict(fp32=max(launches, moving + products / on.peak), bf16=max(launches, half), graph_bf16=half)


def seconds(call: Callable[[], Any]) -> float:
    """Of this process on its core, whoever else may be using it."""
    start = time.process_time()
    call()
    return time.process_time() - start


def this_cpu() -> Callable[[], Machine]:
    """Measures: a copy that no cache holds, a product of matrices, a sum of few numbers; on one core."""
    source, target = (torch.ones(MEGABYTES * 2**18) for _ in range(2))
    left, right = (torch.randn(SIDE, SIDE) for _ in range(2))
    few = torch.ones(SMALL)

    def measure() -> Machine:
        peak = 2 * SIDE**3 / seconds(lambda: left @ right)
        launch = seconds(lambda: [few + few for _ in range(CALLS)]) / CALLS
        return Machine(2 * source.nbytes / seconds(lambda: target.copy_(source)), peak, peak, launch)

    return measure
