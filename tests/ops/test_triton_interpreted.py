"""The kernels' tests, each file in a process: on the CPU in Triton's interpreter, which is chosen before its import.

With MMSOFT_TEST_DEVICE=cuda the same tests run on the GPU.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import DEVICE, ROOT, needs_triton

FILES = sorted(Path(__file__).parent.glob('interpreted_*.py'))


@pytest.mark.slow
@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_in_the_interpreter(file):
    needs_triton()
    chosen = dict(TRITON_INTERPRET='1') if DEVICE.type == 'cpu' else {}
    run = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-x', str(file)],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS='1', **chosen),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert ' passed' in run.stdout, run.stdout
