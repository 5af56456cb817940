"""Time and memory of a checkpoint and of its file on one picture, each in a process of its own."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from mmsoft.memory import peak_memory

RUNS = 5


def compare_cost(checkpoint: str, file: Path, config: str | None, threads: int) -> str:
    """A table with a row each: median seconds a picture, and the largest memory of the process in MiB."""
    rows = [f'{"":<12} {"s/picture":>9} {"MiB":>7}   ({threads} threads, 640 x 480)']
    for name, kind, source in (('checkpoint', 'torch', checkpoint), (file.suffix[1:], 'file', str(file))):
        command = [sys.executable, '-m', 'mmsoft.exporting.benchmark', kind, source, config or '', str(threads)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f'the benchmark of {source!r} ended: {done.stderr.strip().splitlines()[-1]}')
        seconds, memory = json.loads(done.stdout.splitlines()[-1])
        rows.append(f'{name:<12} {seconds:9.3f} {memory:7.0f}')
    return '\n'.join(rows)


def _run(kind: str, source: str, config: str, threads: str) -> tuple[float, float]:
    """Of this process."""
    if kind == 'torch':
        import torch

        from mmsoft.engine.predictor import Predictor

        torch.set_num_threads(int(threads))
        model = Predictor(source, config or None, 'cpu')
    else:
        from mmsoft.deploy import load

        model = load(source, threads=int(threads))
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    model(image)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        model(image)
        times.append(time.perf_counter() - start)
    return float(np.median(times)), peak_memory()


if __name__ == '__main__':
    print(json.dumps(_run(*sys.argv[1:])))
