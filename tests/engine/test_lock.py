"""One training at a time in a work directory, whatever becomes of the other and of its data workers."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from small_worlds import FORK

from mmsoft.engine.lock import lock_work_dir

HOLDER = textwrap.dedent("""\
    import multiprocessing, os, sys, time
    from mmsoft.engine.lock import lock_work_dir

    def work():
        print(os.getpid(), flush=True)
        time.sleep(600)

    lock = lock_work_dir(sys.argv[1])
    multiprocessing.get_context('fork').Process(target=work).start()
    time.sleep(600)
    """)


@pytest.mark.slow
def test_a_killed_training_lets_go_though_its_worker_lives(tmp_path):
    with subprocess.Popen([sys.executable, '-c', HOLDER, tmp_path], stdout=subprocess.PIPE, text=True) as holder:
        worker = int(holder.stdout.readline())
        try:
            with pytest.raises(OSError, match=rf"^another training is at work in '{tmp_path}'; end it first"):
                lock_work_dir(str(tmp_path))
            holder.kill()
            holder.wait()
            os.kill(worker, 0)  # it lives
            lock_work_dir(str(tmp_path)).release()
        finally:
            os.kill(worker, signal.SIGKILL)


def test_a_worker_that_ends_leaves_the_lock_to_its_parent(tmp_path):
    lock = lock_work_dir(str(tmp_path))
    worker = FORK.Process(target=os.getpid)
    worker.start()
    worker.join()
    with pytest.raises(OSError, match='another training'):
        lock_work_dir(str(tmp_path))
    lock.release()
    lock_work_dir(str(tmp_path)).release()


def test_a_directory_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / '.lock').mkdir()
    with pytest.raises(OSError, match=r'cannot be locked: .*; name another --work-dir'):
        lock_work_dir(str(tmp_path))
