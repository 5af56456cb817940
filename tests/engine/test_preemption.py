"""Signals, as Slurm, torchrun and people send them: the run saves, leaves with a code of its own, and goes on later."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import TOOLS
from small_runs import ENVIRONMENT, assert_same_state, children, command, dump, every_iteration, run, small_config

from mmsoft.checkpoints import read_checkpoint
from mmsoft.weights.sources import latest_checkpoint

pytestmark = pytest.mark.slow


def start(arguments: list, log: Path, appears: Path, **variables: str) -> subprocess.Popen:
    """In a session of its own, until the file is there."""
    environment = {**ENVIRONMENT, **variables}
    with log.open('w') as file:
        process = subprocess.Popen(arguments, env=environment, start_new_session=True, stdout=file, stderr=file)
    deadline = time.monotonic() + 240
    while not appears.is_file():
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def trainers(process: subprocess.Popen) -> list[int]:
    """By rank: torchrun's children in the order of their starts."""
    return sorted(children(process.pid))


@pytest.mark.parametrize('name', ['SIGTERM', 'SIGINT'])
def test_one_process_and_its_workers_are_signalled(name: str, tmp_path: Path) -> None:
    """As Slurm or a terminal does: all of its processes get the signal at once."""
    cfg = every_iteration('retinanet', tmp_path / 'data')
    cfg.train_cfg.max_epochs = 4
    del cfg.default_hooks.checkpoint.by_epoch
    cfg.default_hooks.checkpoint.interval = 4
    config, broken, log = dump(cfg, tmp_path), tmp_path / 'broken', tmp_path / 'log'
    arguments = command('train', config, '--work-dir', broken, '--save-every', '1it')
    process = start(arguments, log, broken / 'iter_1.pth')
    os.killpg(process.pid, getattr(signal, name))
    assert process.wait(timeout=120) == 75, log.read_text()[-3000:]
    text = log.read_text()
    assert f'{name}: leaving after this iteration' in text
    assert 'is saved; go on with --resume' in text
    assert 'Traceback' not in text
    (left,) = broken.glob('*.pth')  # the newest of those between
    place = int(left.stem.removeprefix('iter_'))
    assert 1 <= place < 8
    run('train', config, '--work-dir', broken, '--resume', 'auto', '--save-every', '2it')
    assert sorted(path.name for path in broken.glob('*.pth')) == ['epoch_4.pth', f'iter_{8 - place % 2}.pth']
    if name == 'SIGTERM':
        run('train', config, '--work-dir', tmp_path / 'whole')
        assert_same_state(tmp_path / 'whole' / 'epoch_4.pth', broken / 'epoch_4.pth')


def test_two_processes_agree_and_torchrun_has_their_code(tmp_path: Path) -> None:
    """One of them gets a signal; then torchrun does."""
    cfg = every_iteration('classifier', tmp_path / 'data', processes=2)
    cfg.train_cfg.max_epochs = 4
    config, whole, broken, log = dump(cfg, tmp_path), tmp_path / 'whole', tmp_path / 'broken', tmp_path / 'log'
    arguments = ['bash', TOOLS / 'dist_train.sh', config, '2', '--work-dir', broken]
    variables = dict(PYTHON=sys.executable, MASTER_PORT='29522')
    process = start(arguments, log, broken / 'iter_2.pth', **variables)
    os.kill(trainers(process)[1], signal.SIGUSR1)
    assert process.wait(timeout=120) == 75, log.read_text()[-3000:]
    place = read_checkpoint(latest_checkpoint(broken))['meta']['iter']
    assert place < 10
    assert log.read_text().count(f'the state after iteration {place} is saved; go on with --resume') == 2
    process = start([*arguments, '--resume'], log, broken / f'iter_{place + 2}.pth', **variables)
    os.kill(process.pid, signal.SIGUSR1)
    assert process.wait(timeout=120) == 75, log.read_text()[-3000:]
    assert 'is saved; go on with --resume' in log.read_text()
    assert not (broken / 'iter_16.pth').exists()
    run('train', config, '--work-dir', broken, '--resume', processes=2, port=29523)
    run('train', config, '--work-dir', whole, processes=2, port=29524)
    assert_same_state(whole / 'iter_16.pth', broken / 'iter_16.pth')


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    """The first waits for the end of an iteration, which does not come."""
    cfg = small_config('retinanet', tmp_path / 'data', train=4)
    config = dump(cfg, tmp_path)
    slow = tmp_path / 'slow.py'
    slow.write_text(
        'import runpy, sys, time\n'
        'from pathlib import Path\n'
        'from mmengine.model import BaseModel\n'
        'def train_step(*_, **__):\n'
        f'    Path({str(tmp_path / "begun")!r}).touch()\n'
        '    time.sleep(100)\n'
        '    time.sleep(100)\n'
        'BaseModel.train_step = train_step\n'
        'sys.argv = sys.argv[1:]\n'
        'runpy.run_path(sys.argv[0], run_name="__main__")\n'
    )
    python, *arguments = command('train', config, '--work-dir', tmp_path / 'run')
    process = start([python, slow, *arguments], tmp_path / 'log', tmp_path / 'begun')
    for _ in range(2):  # the second within a second of the first: the same, passed on by torchrun
        os.kill(process.pid, signal.SIGINT)
        time.sleep(0.3)
    time.sleep(1)
    assert process.poll() is None
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(timeout=20) not in (0, 75)
    assert 'KeyboardInterrupt' in (tmp_path / 'log').read_text()


FAKE_PYTHON = """#!/bin/bash
echo "$@" >> {folder}/calls
count=$(wc -l < {folder}/calls)
exit $(sed -n "${{count}}p" {folder}/codes)
"""


@pytest.mark.parametrize(
    ('codes', 'job', 'state', 'calls', 'requeued', 'code'),
    [
        ([75, 75, 0], '', '', 3, False, 0),  # by srun alone: again, until it is done
        ([1], '', '', 1, False, 1),
        ([75], '7', 'RUNNING', 1, True, 0),
        ([75], '7', 'CANCELLED', 1, False, 75),
        ([1], '7', 'RUNNING', 1, False, 1),
    ],
)
def test_slurm_train_goes_on_by_itself(
    codes: list, job: str, state: str, calls: int, requeued: bool, code: int, tmp_path: Path
) -> None:
    scripts = dict(
        python=FAKE_PYTHON.format(folder=tmp_path),
        srun=f'#!/bin/bash\nwhile [[ $1 == -* ]]; do echo "$1" >> {tmp_path}/srun; shift; done\nexec "$@"\n',
        scontrol=f'#!/bin/bash\n[[ $1 == show ]] && echo "JobId=$3 JobState={state} Reason=None" || echo "$@" > '
        f'{tmp_path}/requeued\n',
    )
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / 'codes').write_text('\n'.join(map(str, codes)) + '\n')
    environment = dict(os.environ, PATH=f'{tmp_path}:{os.environ["PATH"]}', PYTHON=str(tmp_path / 'python'))
    environment.update({'SLURM_JOB_ID': job} if job else {}, SLURM_RESTART_COUNT='1' if job else '0')
    line = ['bash', TOOLS / 'slurm_train.sh', 'gpu', 'name', 'some.py', '--amp']
    assert subprocess.run(line, env=environment, timeout=60).returncode == code
    asked = (tmp_path / 'calls').read_text().splitlines()
    assert len(asked) == calls
    assert '--signal=USR1@120' in (tmp_path / 'srun').read_text()
    assert [line.endswith('--launcher slurm --amp') for line in asked] == [not job] * (not job) + [False] * (
        calls - 1 + bool(job)
    )
    assert all(line.endswith('--amp --resume auto') for line in (asked if job else asked[1:]))
    assert (tmp_path / 'requeued').exists() == requeued
    if requeued:
        assert (tmp_path / 'requeued').read_text() == 'requeue 7\n'
