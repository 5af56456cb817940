"""Time and memory of a checkpoint and of its file on one picture, each in a process of its own."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmsoft.memory import peak_memory

if TYPE_CHECKING:  # the process that runs the file holds what the file needs, and no more
    from mmengine.config import Config

RUNS = 5


def compare_cost(
    checkpoint: str,
    file: Path,
    config: 'Config | None',
    threads: int,
    trust: bool = False,
    options: Mapping[str, Any] | None = None,
) -> str:
    """A table with a row each: median seconds a picture, and the largest memory of the process in MiB.

    The checkpoint opens as ``export`` opens it.
    """
    rows = [f'{"":<12} {"s/picture":>9} {"MiB":>7}   ({threads} threads, 640 x 480)']
    torch = dict(checkpoint=checkpoint, config=config and config.pretty_text, trust=trust, options=options)
    for name, opened in (('checkpoint', torch), (file.suffix[1:], dict(file=str(file)))):
        command = [sys.executable, '-m', 'mmsoft.exporting.benchmark', str(threads)]
        done = subprocess.run(command, input=json.dumps(opened), capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or f'status {done.returncode}').splitlines()[-1]
            raise RuntimeError(f'the file is written, but the benchmark of the {name} ended: {reason}')
        seconds, memory = json.loads(done.stdout.splitlines()[-1])
        rows.append(f'{name:<12} {seconds:9.3f} {memory:7.0f}')
    return '\n'.join(rows)


def _run(threads: int, opened: Mapping[str, Any]) -> tuple[float, float]:
    """Of this process."""
    if 'file' in opened:
        from mmsoft.deploy import load

        model = load(opened['file'], threads=threads)
    else:
        import torch
        from mmengine.config import Config

        from mmsoft.engine.predictor import Predictor

        torch.set_num_threads(threads)
        config = opened['config'] and Config.fromstring(opened['config'], '.py')
        model = Predictor(opened['checkpoint'], config, 'cpu', opened['trust'], opened['options'])
    image = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    model(image)
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        model(image)
        times.append(time.perf_counter() - start)
    return float(np.median(times)), peak_memory()


if __name__ == '__main__':
    print(json.dumps(_run(int(sys.argv[1]), json.load(sys.stdin))))
