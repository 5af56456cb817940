"""Scripts run in processes that are forked from one that has all libraries loaded: each starts 6 s of CPU time sooner.

Where the start itself is tested (test_cli.py, test_commands.py, test_openmmlab.py), or variables that torch reads when
it is loaded, tests start a Python of their own.
"""

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

LOADED = ('mmsoft.engine.training', 'torchvision', 'matplotlib.pyplot', 'scipy.stats', 'shapely', 'timm')
LOADED += ('mmdet.models', 'mmdet.datasets', 'mmdet.evaluation', 'mmseg.models', 'mmseg.datasets', 'mmseg.evaluation')
LONGEST = 600  # seconds, after which a process has hung
_waiting: list[subprocess.Popen] = []


def run_forked(
    *scripts: list[str], environments: list[dict[str, str]] | None = None, cwd: str | Path = '.'
) -> subprocess.CompletedProcess:
    """Run scripts with their arguments at once, as torchrun does: all end when one fails, with its exit code."""
    if not _waiting:
        command = [sys.executable, __file__]
        environment = dict(os.environ, OMP_NUM_THREADS='1')
        _waiting.append(
            subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
        atexit.register(_waiting[0].stdin.close)
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, 'out'), Path(folder, 'err')
        jobs = [
            dict(script=script, environment=environment, out=str(out), err=str(err), folder=str(Path(cwd).resolve()))
            for script, environment in zip(scripts, environments or [dict(os.environ)] * len(scripts), strict=True)
        ]
        print(json.dumps(jobs), file=_waiting[0].stdin, flush=True)
        code = int(_waiting[0].stdout.readline())
        return subprocess.CompletedProcess(scripts, code, out.read_text(), err.read_text())


def _wait_for_job() -> dict:
    """Starts what it is told to; returns in each child that this makes."""
    for line in sys.stdin:
        children = []
        for job in json.loads(line):
            children.append(os.fork())
            if not children[-1]:
                return job
        print(_end_of(children), flush=True)
    sys.exit()


def _end_of(children: list[int]) -> int:
    code = 0
    while children:
        child, status = os.wait()
        children.remove(child)
        if status and not code:
            code = os.waitstatus_to_exitcode(status)
            for other in children:
                os.kill(other, signal.SIGTERM)
    return code


def _become(job: dict) -> None:
    for number, name in enumerate((os.devnull, job['out'], job['err'])):
        file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, number)
        os.close(file)
    signal.alarm(LONGEST)
    os.environ.clear()
    os.environ.update(job['environment'])
    os.chdir(job['folder'])
    sys.argv = job['script']
    sys.path[0] = str(Path(sys.argv[0]).parent)


if __name__ == '__main__':
    with contextlib.redirect_stdout(sys.stderr):  # some print what they miss; our output is codes
        for name in LOADED:
            __import__(name)
    gc.freeze()  # children neither look through what was loaded before nor copy it
    assert len([*Path('/proc/self/task').iterdir()]) == 1, 'a fork has none of the threads of its parent'
    _become(_wait_for_job())
    runpy.run_path(sys.argv[0], run_name='__main__')
