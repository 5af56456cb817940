"""Training as users do it: real tools, real processes, kills, several processes, bad input."""

import json
import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from forking import run_forked
from small_runs import ENVIRONMENT, children, command, dump, losses, run, small_config

from mmsoft.checkpoints import read_checkpoint
from mmsoft.weights.sources import latest_checkpoint

pytestmark = pytest.mark.slow


def weights_of(path):
    """All tensors of a checkpoint's model, and of their average where there is one."""
    checkpoint = read_checkpoint(path)
    averages = {f'average.{name}': value for name, value in checkpoint.get('state_dict_ema', {}).items()}
    return {**checkpoint['state_dict'], **averages}


def assert_same_weights(first, second):
    first, second = weights_of(first), weights_of(second)
    assert first.keys() == second.keys()
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different, (len(different), len(first), different[:5])


def kill_when(appears, arguments, processes):
    """Start, wait until the file is there, kill -9 the trainers; their data workers live on for some seconds."""
    process = subprocess.Popen(
        arguments,
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 120
    while not appears.is_file():
        assert process.poll() is None, 'it ended before it could be killed'
        assert time.monotonic() < deadline
        time.sleep(0.02)
    trainers = children(process.pid) if processes > 1 else []  # of torchrun
    for number in [process.pid, *trainers]:
        os.kill(number, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize(('method', 'processes'), [('retinanet', 1), ('upernet', 2), ('classifier', 2)])
def test_a_killed_run_goes_on_as_if_nothing_had_been(method, processes, tmp_path):
    """Epochs and iterations, dropout and flips, one process and two: the weights at the end are equal, bit for bit."""
    cfg = small_config(method, tmp_path / 'data', epochs=3)
    cfg.train_dataloader.num_workers = 2
    config = dump(cfg, tmp_path)
    first, last = ('iter_4.pth', 'iter_12.pth') if method == 'upernet' else ('epoch_1.pth', 'epoch_3.pth')
    whole, broken = tmp_path / 'whole', tmp_path / 'broken'
    run('train', config, '--work-dir', whole, processes=processes)
    arguments = command('train', config, '--work-dir', broken, processes=processes, port=29512)
    kill_when(broken / first, arguments, processes)
    assert not (broken / last).exists()
    resumed = run('train', config, '--work-dir', broken, '--resume', 'auto', processes=processes, port=29513)
    assert 'resumed epoch' in resumed.stdout + resumed.stderr
    assert_same_weights(whole / last, broken / last)


def test_a_kill_while_a_checkpoint_is_written_loses_nothing(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=4, epochs=2)
    cfg.default_hooks.checkpoint.max_keep_ckpts = 1
    config = dump(cfg, tmp_path)
    killer = tmp_path / 'killer.py'
    killer.write_text(
        textwrap.dedent("""\
        import os, runpy, signal, sys
        import mmengine.fileio.backends.local_backend as local

        def half(self, obj, filepath, put=local.LocalBackend.put):
            if 'epoch_2' in str(filepath):  # the second checkpoint: half of its bytes, then the end
                put(self, obj[: len(obj) // 2], filepath)
                os.kill(os.getpid(), signal.SIGKILL)
            put(self, obj, filepath)

        local.LocalBackend.put = half
        sys.argv = sys.argv[1:]
        runpy.run_path(sys.argv[0], run_name='__main__')
        """)
    )
    _, *arguments = command('train', config, '--work-dir', tmp_path / 'run')
    killed = run_forked([str(killer), *arguments])
    assert killed.returncode == -signal.SIGKILL
    assert [path.name for path in sorted((tmp_path / 'run').glob('*.p*t*'))] == ['epoch_1.pth', 'epoch_2.pth.part']
    assert latest_checkpoint(tmp_path / 'run').name == 'epoch_1.pth'
    run('train', config, '--work-dir', tmp_path / 'run', '--resume')
    run('train', config, '--work-dir', tmp_path / 'whole')
    assert_same_weights(tmp_path / 'whole' / 'epoch_2.pth', tmp_path / 'run' / 'epoch_2.pth')
    # one is kept, and half-written ones are gone
    assert [path.name for path in (tmp_path / 'run').glob('*.p*t*')] == ['epoch_2.pth']


def deterministic(cfg):
    """What one process and two can share: no dropout, no statistics of a batch, no drawn proposals."""
    cfg.model.backbone.update(drop_path_rate=0.0, norm_eval=True)
    if 'mixup' in cfg.model:
        cfg.model.mixup = None
        cfg.auto_scale_lr.enable = False
    cfg.optim_wrapper.optimizer.lr = 1e-4
    for head in (cfg.model.get('decode_head'), cfg.model.get('auxiliary_head')):
        if head:
            head.update(norm_cfg=dict(type='GN', num_groups=4), dropout_ratio=0.0)
    if 'roi_head' in cfg.model:  # so many that all are taken
        cfg.model.train_cfg.rpn.sampler.update(num=100000, pos_fraction=1.0)
        cfg.model.train_cfg.rcnn.sampler.update(num=100000, pos_fraction=1.0)
        cfg.model.train_cfg.rpn_proposal.update(nms_pre=0, max_per_img=0)
    return cfg


def start_by_hand(arguments, launcher):
    """Two processes with what srun sets, or what torchrun is given on each of two machines."""
    if launcher == 'slurm':
        _, *script = [*command('train', *arguments), '--launcher', 'slurm']
        shared = dict(ENVIRONMENT, MASTER_PORT='29516', SLURM_NTASKS='2', SLURM_JOB_NODELIST='localhost')
        environments = [dict(shared, SLURM_PROCID=rank, SLURM_LOCALID=rank) for rank in '01']
        assert run_forked(script, script, environments=environments).returncode == 0
        return
    lines = [command('train', *arguments, processes=2, port=29514, node=(rank, 2)) for rank in (0, 1)]
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    started = [subprocess.Popen(line, env=ENVIRONMENT, **pipes) for line in lines]
    assert [process.wait(timeout=240) for process in started] == [0, 0]


@pytest.mark.parametrize(
    ('method', 'how'),
    [
        ('mask_rcnn', 'two processes'),
        ('retinanet', 'slurm'),
        ('upernet', 'two machines'),
        ('classifier', 'two processes'),
    ],
)
def test_two_processes_equal_one_with_the_same_batch(method, how, tmp_path):
    """Shuffled, flipped, different pictures. mmdet's losses divide by a process's number of objects: there, the one
    process accumulates the gradients of two batches of one."""
    cfg = deterministic(small_config(method, tmp_path / 'data', epochs=1))
    cfg.train_dataloader.batch_size = 1
    if method == 'upernet':
        cfg.train_cfg.update(max_iters=4, val_interval=4)
    two = dump(cfg, tmp_path, 'two')
    detects = method in ('mask_rcnn', 'retinanet')
    if not detects:
        cfg.train_dataloader.batch_size = 2
    else:
        cfg.optim_wrapper.accumulative_counts = 2
    run('train', dump(cfg, tmp_path, 'one'), '--work-dir', tmp_path / 'one')
    arguments = two, '--work-dir', tmp_path / 'two'
    if how == 'two processes':
        run('train', *arguments, processes=2, port=29515)
    else:
        start_by_hand(arguments, how)
    expected, found = losses(tmp_path / 'one'), losses(tmp_path / 'two')
    if detects:
        expected = [(first + second) / 2 for first, second in zip(expected[::2], expected[1::2], strict=True)]
    assert len(expected) == len(found) >= 4
    assert found == pytest.approx(expected, rel=1e-3)
    first, second = (weights_of(latest_checkpoint(tmp_path / name)) for name in ('one', 'two'))
    moved = max((first[name] - second[name]).abs().max().item() for name in first if first[name].is_floating_point())
    # half of what AdamW can move a weight: where a gradient is next to nothing, rounding decides its sign
    assert moved < 5e-5 * len(found), (moved, len(found))


def test_training_helps_and_the_checkpoint_tests_alike(tmp_path):
    """A trained model beats an untrained one by far; test.py meets the metrics of training; .safetensors too."""
    from safetensors.torch import save_file

    cfg = small_config('upernet', tmp_path / 'data', train=32, batch=4, epochs=10)
    cfg.optim_wrapper.optimizer.lr = 2e-3
    config = dump(cfg, tmp_path)
    run('train', config, '--work-dir', tmp_path / 'run', '--seed', 3)
    last = latest_checkpoint(tmp_path / 'run')
    weights = weights_of(last)
    save_file({name: value.contiguous() for name, value in weights.items()}, tmp_path / 'trained.safetensors')
    cfg.train_cfg.max_iters, cfg.optim_wrapper.optimizer.lr = 1, 1e-9
    run('train', dump(cfg, tmp_path, 'untrained'), '--work-dir', tmp_path / 'untrained')

    def tested(checkpoint, *options):
        done = run('test', config, checkpoint, '--work-dir', tmp_path / 'test', *options)
        assert 'traffic light' in done.stdout + done.stderr  # the table by class
        metrics = json.loads((tmp_path / 'test' / 'metrics.json').read_text())['metrics']
        assert 0 <= metrics['IoU_road'] <= 100
        return metrics['mIoU']

    out = ('--out', tmp_path / 'all.pkl', '--show-dir', tmp_path / 'drawn')
    trained = tested(tmp_path / 'trained.safetensors', *out)
    assert trained == tested(last)
    assert trained > 3 * tested(latest_checkpoint(tmp_path / 'untrained'))
    assert len(list((tmp_path / 'drawn').rglob('*.jpg'))) == 4
    assert (tmp_path / 'all.pkl').stat().st_size > 0


def error_of(*arguments, **options):
    done = run('train', *arguments, check=False, **options)
    assert done.returncode == 1
    assert 'Traceback' not in done.stderr
    return done.stderr.strip()


def test_what_is_wrong_is_said_before_anything_is_built(tmp_path, monkeypatch):
    cfg = small_config('retinanet', tmp_path / 'data', train=4)
    config = dump(cfg, tmp_path)
    (tmp_path / 'file').write_text('')
    text = error_of(config, '--work-dir', tmp_path / 'file' / 'run')
    assert f"the work directory '{tmp_path}/file/run' cannot be written" in text
    text = error_of(config, '--work-dir', tmp_path / 'run', '--cfg-options', f'data_root={tmp_path}/nowhere')
    assert 'train2017/*.jpg' in text
    assert 'MMSOFT_DATA' in text
    text = error_of(config, '--work-dir', tmp_path / 'run', '--cfg-options', 'val_evaluator.ann_file=none.json')
    assert "val_evaluator.ann_file: there is no 'none.json'" in text
    text = error_of(config, '--work-dir', tmp_path / 'run', '--cfg-options', 'model.bbox_head.num_classes=2')
    assert 'has 80 classes, but model.bbox_head.num_classes is 2' in text
    cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint='pretrained/none.pth')
    text = error_of(dump(cfg, tmp_path, 'pretrained'), '--work-dir', tmp_path / 'run')
    assert 'Three ways out' in text
    assert '--no-pretrained' in text
    text = error_of(config, '--work-dir', tmp_path / 'run', '--launcher', 'pytorch')
    assert 'torchrun (tools/dist_train.sh)' in text
    with FileLock(tmp_path / 'run' / '.lock'):
        assert 'another training is at work' in error_of(config, '--work-dir', tmp_path / 'run')
    monkeypatch.setitem(ENVIRONMENT, 'WORLD_SIZE', '2')
    assert 'add --launcher pytorch' in error_of(config, '--work-dir', tmp_path / 'run')
    assert not list((tmp_path / 'run').glob('*/*.log'))


def test_a_disk_without_room_is_found_before_training(tmp_path):
    """The limit on file sizes stands for a full disk: the system refuses in the same way."""
    config = dump(small_config('retinanet', tmp_path / 'data', train=4), tmp_path)
    python, *arguments = command('train', config, '--work-dir', tmp_path / 'run')
    code = (
        'import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18)); '
        'sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")'
    )
    done = subprocess.run([python, '-c', code, *arguments], capture_output=True, text=True)
    assert 'a checkpoint of this model takes' in done.stderr
    assert 'make room or name another --work-dir' in done.stderr
    assert not list((tmp_path / 'run').glob('*.p*t*'))


def test_a_bad_loss_stops_and_names_its_files(tmp_path):
    cfg = small_config('upernet', tmp_path / 'data', train=4)
    cfg.optim_wrapper.optimizer.lr = 1e30
    text = error_of(dump(cfg, tmp_path), '--work-dir', tmp_path / 'run')
    assert 'is not a finite number; its files are in' in text
    report = json.loads((tmp_path / 'run' / 'invalid_loss_rank0.json').read_text())
    assert all(Path(file).is_file() for file in report['files'])
    assert len(report['files']) == 2


def test_mixed_precision_trains_on_a_cpu(tmp_path):
    config = dump(small_config('retinanet', tmp_path / 'data', train=4, epochs=1), tmp_path)
    run('train', config, '--work-dir', tmp_path / 'plain')
    run('train', config, '--work-dir', tmp_path / 'amp', '--amp')
    plain, amp = losses(tmp_path / 'plain'), losses(tmp_path / 'amp')
    assert amp != plain
    assert amp == pytest.approx(plain, rel=0.05)
    regions = dump(small_config('mask_rcnn', tmp_path / 'data', train=4), tmp_path, 'regions')
    assert "mmcv's operators for regions" in error_of(regions, '--work-dir', tmp_path / 'run', '--amp')


def test_the_lr_follows_the_batch(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=4, epochs=1)
    run('train', dump(cfg, tmp_path), '--work-dir', tmp_path / 'run', '--auto-scale-lr')
    (file,) = (tmp_path / 'run').glob('*/vis_data/scalars.json')
    row = json.loads(file.read_text().splitlines()[0])
    assert row['lr'] == pytest.approx(1e-4 * 2 / 16)  # two images instead of sixteen


def test_bad_files_do_not_end_a_run(tmp_path):
    """A truncated image and labels out of range, met while training and testing in worker processes."""
    cfg = small_config('upernet', tmp_path / 'data', train=8, epochs=1)
    cfg.train_dataloader.num_workers = 2
    root = Path(cfg.train_dataloader.dataset.data_root)
    for split in ('train', 'val'):
        picture = sorted(root.glob(f'leftImg8bit/{split}/*/*.png'))[0]
        picture.write_bytes(picture.read_bytes()[:100])
    done = run('train', dump(cfg, tmp_path), '--work-dir', tmp_path / 'run')
    assert '2 files could not be used so far' in done.stdout + done.stderr
    # the config that the run left behind serves again; the broken picture is drawn as the model sees it
    copy, last = tmp_path / 'run' / 'small.py', latest_checkpoint(tmp_path / 'run')
    run('test', copy, last, '--work-dir', tmp_path / 'test', '--show-dir', tmp_path / 'drawn')
    assert len(list((tmp_path / 'drawn').rglob('*.jpg'))) == 4
    done = run('predict', copy, last, root / 'leftImg8bit' / 'val', '--out-dir', tmp_path / 'found')
    assert len(list((tmp_path / 'found' / 'labels').rglob('*.png'))) == 3
    run('browse_dataset', copy, '--out-dir', tmp_path / 'seen', '--count', '4')


class Evil:
    def __reduce__(self):
        return os.system, ('touch evil',)


def test_a_pickle_that_runs_code_is_refused_unless_trusted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cfg = small_config('retinanet', tmp_path / 'data', train=4, epochs=1)
    config = dump(cfg, tmp_path)
    run('train', config, '--work-dir', tmp_path / 'run')
    content = read_checkpoint(latest_checkpoint(tmp_path / 'run'))
    torch.save(dict(content, extra=Evil()), tmp_path / 'evil.pth')
    done = run('test', config, tmp_path / 'evil.pth', '--work-dir', tmp_path / 'test', check=False)
    assert 'could run code' in done.stderr
    assert '--trust-checkpoint' in done.stderr
    assert not (tmp_path / 'evil').exists()
    run('test', config, tmp_path / 'evil.pth', '--work-dir', tmp_path / 'test', '--trust-checkpoint')
    assert (tmp_path / 'evil').exists()
    bare = tmp_path / 'bare.pth'
    torch.save(content['state_dict'], bare)
    text = error_of(config, '--work-dir', tmp_path / 'run', '--resume', bare)
    assert 'cannot be resumed: it has no message_hub, meta, optimizer' in text
