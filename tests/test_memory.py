"""What a process holds."""

import subprocess
import sys

import numpy as np

from mmsoft.memory import peak_memory

PRINT = 'from mmsoft.memory import peak_memory; print(peak_memory())'


def test_a_peak_is_of_the_process_alone():
    block = np.ones(2**26)  # 512 MiB, of which a child's ru_maxrss would tell
    assert 512 < peak_memory() < 100_000
    child = subprocess.run([sys.executable, '-c', PRINT], check=True, capture_output=True, text=True)
    assert 5 < float(child.stdout) < 400
    assert block.sum() == 2**26
