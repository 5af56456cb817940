"""A disk that is full, and a work directory that is deleted, while a run is at work: told once, and nothing lost."""

import json
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from small_runs import ENVIRONMENT, command, dump, losses, small_config

pytestmark = pytest.mark.slow

DRIVER = """\
import runpy, shutil, sys
from pathlib import Path
import logging
from mmengine.hooks import LoggerHook
from mmengine.visualization import LocalVisBackend

{attack}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name='__main__')
"""
FULL_LOG = """\
def fill(self, runner, *arguments, log=LoggerHook.after_train_iter, **options):
    for handler in runner.logger.handlers:
        if isinstance(handler, logging.FileHandler) and runner.iter == 2:
            handler.stream = open('/dev/full', 'w')
    log(self, runner, *arguments, **options)

LoggerHook.after_train_iter = fill
"""
# From the third row on; the kernel's own error, and half a row that it took.
FULL_SCALARS = """\
rows = []

def full(self, row, path, form, dump=LocalVisBackend._dump):
    if path.endswith('scalars.json'):
        rows.append(row)
    if 3 <= len(rows) <= 5:
        with open(path, 'a') as file:
            file.write('{"half a')
        open('/dev/full', 'wb', buffering=0).write(b'x')
    dump(self, row, path, form)

LocalVisBackend._dump = full
"""
DELETED = """\
deleted = []

def delete(self, runner, *arguments, log=LoggerHook.after_train_iter, **options):
    if runner.epoch == 1 and not deleted:
        deleted.append(True)
        shutil.rmtree(runner.work_dir)
    log(self, runner, *arguments, **options)

LoggerHook.after_train_iter = delete
"""

# The limit on file sizes stands for a full disk: metrics.json is below it.
NO_ROOM_FOR_RESULTS = """\
import resource
from mmengine.runner import TestLoop

def limited(self, run=TestLoop.run):
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    return run(self)

TestLoop.run = limited
"""


@pytest.fixture(scope='module')
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp('full')
    cfg = small_config('classifier', folder / 'data', train=8, batch=2, epochs=2)
    cfg.default_hooks.checkpoint.interval = 1
    return dump(cfg, folder)


def attacked(
    attack: str, config: Path, folder: Path, tool: str = 'train', *arguments: object
) -> subprocess.CompletedProcess:
    (folder / 'driver.py').write_text(textwrap.dedent(DRIVER).format(attack=attack))
    python, *arguments = command(tool, config, *arguments, '--work-dir', folder / 'run')
    arguments = [python, folder / 'driver.py', *arguments]
    return subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=240)


def test_a_log_on_a_full_disk_is_told_of_once_and_training_goes_on(config: Path, tmp_path: Path) -> None:
    done = attacked(FULL_LOG + FULL_SCALARS, config, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count('cannot be written: No space left on device. The run goes on') == 1
    assert 'Logging error' not in done.stderr
    assert len(losses(tmp_path / 'run')) == 32 - 3  # rows are whole or absent
    assert {path.name for path in (tmp_path / 'run').glob('*.pth')} >= {'epoch_1.pth', 'epoch_2.pth'}


def test_a_work_directory_that_is_deleted_is_told_of_and_training_goes_on(config: Path, tmp_path: Path) -> None:
    done = attacked(DELETED, config, tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stderr.count('is gone: has somebody deleted the work directory of this run?') == 1
    assert {path.name for path in (tmp_path / 'run').glob('*.pth')} == {'epoch_2.pth', 'best_accuracy_top1_epoch_2.pth'}
    assert len(losses(tmp_path / 'run')) == 16
    (log,) = (tmp_path / 'run').glob('*/*.log')
    assert 'Epoch(train) [2]' in log.read_text()
    assert json.loads((next((tmp_path / 'run').glob('*/vis_data')) / 'scalars.json').read_text().splitlines()[0])


@pytest.mark.parametrize('what', ['--show-dir', '--out'])
def test_metrics_outlast_drawings_and_predictions_for_which_there_is_no_room(
    config: Path, what: str, tmp_path: Path
) -> None:
    cfg, target, weights = Config.fromfile(config), tmp_path / 'results' / 'all.pkl', tmp_path / 'weights.pth'
    init_default_scope(cfg.default_scope)
    torch.save(MODELS.build(cfg.model).state_dict(), weights)
    target.parent.mkdir()
    done = attacked(NO_ROOM_FOR_RESULTS, config, tmp_path, 'test', weights, what, target)
    assert done.returncode == 1
    assert f'error: {str(target)!r} is not complete, though the metrics are: [Errno 27]' in done.stderr
    assert 0 <= json.loads((tmp_path / 'run' / 'metrics.json').read_text())['metrics']['accuracy/top1'] <= 100
    assert not [path for path in target.parent.rglob('*') if path.is_file()]
