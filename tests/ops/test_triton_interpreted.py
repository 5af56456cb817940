"""The kernels' tests in Triton's interpreter, each file in a process: it has to be chosen before Triton is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT

FILES = sorted(Path(__file__).parent.glob('interpreted_*.py'))


@pytest.mark.parametrize('file', FILES, ids=lambda file: file.stem)
def test_in_the_interpreter(file):
    pytest.importorskip('triton')
    run = subprocess.run(
        [sys.executable, '-m', 'pytest', '-p', 'no:cacheprovider', '-x', str(file)],
        cwd=ROOT,
        env=dict(os.environ, TRITON_INTERPRET='1', OMP_NUM_THREADS='1'),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert ' passed' in run.stdout, run.stdout
