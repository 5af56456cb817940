"""Several processes: started for different runs, waiting for one that hangs, and one that ends."""

import hashlib
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from small_runs import ENVIRONMENT, command, dump, small_config

from mmsoft.engine.watching import wait_for_calm

pytestmark = pytest.mark.slow


def together(lines: list[list], port: int, **variables: str) -> tuple[list[int], list[str]]:
    """Codes and words of two processes, started as srun does: nobody ends the others."""
    started = []
    for rank, line in enumerate(lines):
        slurm = dict(SLURM_PROCID=rank, SLURM_LOCALID=rank, SLURM_NTASKS=2, SLURM_JOB_NODELIST='localhost')
        environment = dict(ENVIRONMENT, MASTER_PORT=str(port), **{key: str(value) for key, value in slurm.items()})
        pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        started.append(subprocess.Popen([*line, '--launcher', 'slurm'], env={**environment, **variables}, **pipes))
    try:
        words = [process.communicate(timeout=240)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [process.returncode for process in started], words


def test_ranks_with_other_configs_are_named(tmp_path: Path) -> None:
    cfg = small_config('upernet', tmp_path / 'data', train=4)
    first = dump(cfg, tmp_path, 'first')
    cfg.optim_wrapper.optimizer.lr = 0.5
    second = dump(cfg, tmp_path, 'second')
    lines = [command('train', config, '--work-dir', tmp_path / 'run') for config in (first, second)]
    codes, words = together(lines, 29531)
    assert codes == [1, 1]
    for text in words:
        assert 'started for different runs: optim_wrapper.optimizer.lr is 0.0006 in rank 0 and 0.5 in rank 1; ' in text
        assert 'Traceback' not in text


# The second process of two reads its third batch slowly, and then ends in some way.
SLOW = """
import os, runpy, signal, sys, time
from mmsoft.datasets.seeding import SeededDataset
read = SeededDataset.__getitem__
count = 0

def slow(self, index):
    global count
    count += os.environ['SLURM_PROCID'] == '1'
    if count == 5:  # two a batch
        time.sleep(5)
        {end}
    return read(self, index)

SeededDataset.__getitem__ = slow
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""


@pytest.mark.parametrize(
    ('end', 'code', 'sentence'),
    [
        ('raise ValueError("this picture is of another world")', 1, 'this picture is of another world'),
        ('os.kill(os.getpid(), signal.SIGKILL)', -signal.SIGKILL, 'without a word'),
    ],
)
def test_who_waits_says_for_whom_and_who_ends_says_why(end: str, code: int, sentence: str, tmp_path: Path) -> None:
    cfg = small_config('upernet', tmp_path / 'data', train=16)
    config = dump(cfg, tmp_path)
    (tmp_path / 'slow.py').write_text(SLOW.format(end=end))
    python, *arguments = command('train', config, '--work-dir', tmp_path / 'run')
    codes, words = together([[python, tmp_path / 'slow.py', *arguments]] * 2, 29532, MMSOFT_PATIENCE='3')
    assert codes == [1, code]
    assert 's for rank 1, which saves after iteration 2, or reads the next batch' in words[0]
    assert f'rank 1 ended: {sentence}' in words[0]
    assert 'has waited' not in words[1]


def test_a_fork_waits_for_threads_that_run_and_not_for_ever() -> None:
    """A thread that needs no interpreter lock, as gloo's; one that sleeps is not waited for."""
    sleeper = threading.Event()
    threading.Thread(target=sleeper.wait, daemon=True).start()
    begun = time.monotonic()
    wait_for_calm()
    assert time.monotonic() - begun < 0.2
    for rounds, longest, ended in ((2 * 10**5, 60.0, True), (3 * 10**6, 0.05, False)):
        thread = threading.Thread(target=hashlib.pbkdf2_hmac, args=('sha256', b'', b'', rounds), daemon=True)
        thread.start()
        wait_for_calm(longest)
        thread.join(0.02)
        assert thread.is_alive() is not ended
    sleeper.set()
