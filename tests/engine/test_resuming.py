"""A run goes on from any iteration as if nothing had been, or says why it does not."""

import copy
import os
import signal
import textwrap
from pathlib import Path

import pytest
import torch
from forking import run_forked
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import EarlyStoppingHook, EMAHook
from mmengine.model import BaseModel
from mmengine.optim import OptimWrapper
from mmengine.structures import BaseDataElement
from small_runs import assert_same_state, command, dump, every_iteration, run, small_config
from yapf.yapflib import yapf_api

from mmsoft.checkpoints import CheckpointError, read_checkpoint
from mmsoft.engine.conditions import check_optimizer, check_same, conditions, differences, forgetful
from mmsoft.engine.resuming import own_files_only
from mmsoft.engine.runner import FormattedOnce, Runner
from mmsoft.engine.saving import collect_for, parse_interval
from mmsoft.engine.training import _start_alone, run_folder
from mmsoft.weights.sources import latest_checkpoint


@pytest.mark.slow
@pytest.mark.parametrize(
    ('method', 'processes', 'place', 'done'),
    [('retinanet', 1, 1, 1), ('upernet', 2, 2, 0), ('classifier', 2, 5, 1)],
)
def test_any_iteration_can_be_resumed(method: str, processes: int, place: int, done: int, tmp_path: Path) -> None:
    """In the middle of an epoch; while gradients are added up; where BatchNorm's statistics differ by process.

    Nothing of the run that it goes on from is removed, whatever its checkpoint says.
    """
    cfg = every_iteration(method, tmp_path / 'data', processes)
    if method == 'upernet':
        cfg.optim_wrapper.accumulative_counts = 3
    config, whole, other = dump(cfg, tmp_path), tmp_path / 'whole', tmp_path / 'other'
    run('train', config, '--work-dir', whole, processes=processes)
    last = latest_checkpoint(whole)
    checkpoint = read_checkpoint(whole / f'iter_{place}.pth')
    assert checkpoint['meta']['mmsoft']['done'] == done
    assert ('gradients' in checkpoint) == (method == 'upernet')
    assert bool(checkpoint.get('buffers_of_ranks')) == (processes > 1)
    victim = tmp_path / 'best_of_others.pth'
    victim.touch()
    info = dict(checkpoint['message_hub']['runtime_info'], best_ckpt=str(victim), keep_ckpt_ids=[1, 2, 3])
    checkpoint['message_hub'] = dict(runtime_info=info, resumed_keys=dict.fromkeys(info, True), log_scalars={})
    torch.save(checkpoint, tmp_path / 'from.pth')
    cfg.default_hooks.checkpoint.save_best = 'auto'
    config = dump(cfg, tmp_path, 'other')
    run('train', config, '--work-dir', other, '--resume', tmp_path / 'from.pth', processes=processes, port=29521)
    assert_same_state(last, other / last.name)
    assert victim.exists()


KILLER = textwrap.dedent("""\
    import os, runpy, signal, sys
    from mmengine.runner import ValLoop

    def run_iter(self, idx, batch, go_on=ValLoop.run_iter):
        if self.runner.iter == {iteration} and idx == 0:
            os.kill(os.getpid(), signal.{signal})
        go_on(self, idx, batch)

    ValLoop.run_iter = run_iter
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name='__main__')
    """)


@pytest.mark.slow
@pytest.mark.parametrize(('method', 'number'), [('upernet', 'SIGKILL'), ('classifier', 'SIGTERM')])
def test_a_validation_that_was_cut_off_is_made_up(method: str, number: str, tmp_path: Path) -> None:
    """The best checkpoint is that of an uninterrupted run, for loops over iterations and over epochs."""
    cfg = small_config(method, tmp_path / 'data', train=4, epochs=2)
    cfg.default_hooks.checkpoint.update(save_best='mIoU' if method == 'upernet' else 'accuracy/top1', interval=1)
    cfg.train_cfg.val_interval = 1
    config, whole, broken = dump(cfg, tmp_path), tmp_path / 'whole', tmp_path / 'broken'
    run('train', config, '--work-dir', whole)
    per_epoch = read_checkpoint(latest_checkpoint(whole))['meta']['iter'] // 2
    (tmp_path / 'killer.py').write_text(KILLER.format(iteration=2 * per_epoch, signal=number))
    _, *arguments = command('train', config, '--work-dir', broken)
    killed = run_forked([str(tmp_path / 'killer.py'), *arguments])
    assert killed.returncode == {'SIGKILL': -signal.SIGKILL, 'SIGTERM': 75}[number], killed.stderr[-3000:]
    resumed = run('train', config, '--work-dir', broken, '--resume')
    assert 'is made up' in resumed.stdout + resumed.stderr
    best = [path.name for path in whole.glob('best_*.pth')]
    assert [path.name for path in broken.glob('best_*.pth')] == best
    assert len(best) == 1
    hubs = [read_checkpoint(latest_checkpoint(folder))['message_hub']['runtime_info'] for folder in (whole, broken)]
    assert hubs[0]['best_score'] == hubs[1]['best_score']


@pytest.mark.slow
def test_another_run_is_refused_with_what_differs(tmp_path: Path) -> None:
    cfg = every_iteration('retinanet', tmp_path / 'data')
    cfg.train_cfg.max_epochs = 1
    run('train', dump(cfg, tmp_path), '--work-dir', tmp_path / 'run')
    first = tmp_path / 'run' / 'iter_1.pth'
    cfg.optim_wrapper.optimizer.lr, cfg.train_dataloader.batch_size = 5e-4, 1
    cfg.default_hooks.logger.interval, cfg.train_dataloader.num_workers = 3, 0  # innocent
    other = dump(cfg, tmp_path, 'other')
    done = run('train', other, '--work-dir', tmp_path / 'other', '--resume', first, check=False)
    assert done.returncode == 1
    assert 'Traceback' not in done.stderr
    assert 'epoch_length is 2 there and 4 here; train_dataloader.batch_size is 2 there and 1 here; ' in done.stderr
    assert 'optim_wrapper.optimizer.lr is 0.0001 there and 0.0005 here. Give' in done.stderr
    done = run('train', other, '--work-dir', tmp_path / 'other', '--resume', first, '--resume-anyway')
    assert 'goes on with other values' in done.stdout + done.stderr
    last = read_checkpoint(latest_checkpoint(tmp_path / 'other'))
    assert {group['lr'] for group in last['optimizer']['param_groups']} == {5e-4}
    assert last['meta']['iter'] == 4  # half of the epoch was done


def test_the_config_is_formatted_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg, calls = small_config('retinanet', tmp_path), []
    expected = cfg.pretty_text
    original = yapf_api.FormatCode
    monkeypatch.setattr(yapf_api, 'FormatCode', lambda *args, **options: calls.append(1) or original(*args, **options))
    ours = copy.deepcopy(FormattedOnce.of(cfg))
    assert [ours.pretty_text, ours.pretty_text] == [expected, expected]
    assert len(calls) == 1
    ours.train_cfg.max_epochs = 77
    assert 'max_epochs=77' in ours.pretty_text
    assert cfg.pretty_text == expected


def test_innocent_changes_are_none(tmp_path: Path) -> None:
    first, second = (small_config('retinanet', tmp_path / name) for name in ('data', 'moved'))
    second.default_hooks.logger.interval, second.train_dataloader.num_workers = 7, 3
    second.train_cfg.val_interval, second.work_dir = 1, 'elsewhere'
    assert not differences(conditions(first), conditions(second))
    second.train_cfg.max_epochs, second.model.backbone.drop_path_rate = 24, 0.1
    second.sync_bn = 'torch'
    assert list(differences(conditions(first), conditions(second))) == [
        'model.backbone.drop_path_rate',
        'train_cfg.max_epochs',
        'sync_bn',
    ]


def test_an_lr_that_follows_the_batch_allows_another_batch() -> None:
    saved = dict(done=1, processes=8, epoch_length=4, samples=64, config={'auto_scale_lr.enable': True})
    now = dict(saved, processes=4, epoch_length=8)
    assert list(check_same(saved, now, anyway=False, by_epoch=True)) == ['processes', 'epoch_length']
    with pytest.raises(CheckpointError, match='processes is 8 there and 4 here; epoch_length is 4 there and 8 here'):
        check_same(saved, now, anyway=False, by_epoch=False)
    with pytest.raises(CheckpointError, match='what it says of its run is damaged'):
        check_same(dict(saved, epoch_length=0), now, anyway=True, by_epoch=True)


def test_another_optimizer_is_one_sentence() -> None:
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    adam = OptimWrapper(torch.optim.AdamW(weights))
    check_optimizer(OptimWrapper(torch.optim.AdamW(weights, lr=1.0)).state_dict(), adam)
    with pytest.raises(CheckpointError, match=r'of another kind than AdamW: it has dampening, lr, .*resume with'):
        check_optimizer(OptimWrapper(torch.optim.SGD(weights, lr=0.1)).state_dict(), adam)
    with pytest.raises(CheckpointError, match='its optimizer has 2 tensors in 1 groups, this one 3 in 1'):
        check_optimizer(OptimWrapper(torch.optim.AdamW(weights[:2])).state_dict(), adam)


def _hub(tmp_path: Path, **entries: object) -> dict:
    info = dict(entries)
    own_files_only(info, tmp_path / 'run' / 'epoch_1.pth', [tmp_path / 'run'])
    return info


def test_only_own_files_are_removed(tmp_path: Path) -> None:
    """Names out of the folder, links out of it, other names, numbers that are none."""
    (tmp_path / 'run').mkdir()
    for file in ('run/best_x_epoch_1.pth', 'run/notes.txt', 'best_victim.pth'):
        (tmp_path / file).touch()
    (tmp_path / 'run' / 'best_link.pth').symlink_to(tmp_path / 'best_victim.pth')
    own = str(tmp_path / 'run' / 'best_x_epoch_1.pth')
    assert _hub(tmp_path, best_ckpt=own, keep_ckpt_ids=[1, 2]) == dict(best_ckpt=own, keep_ckpt_ids=[1, 2])
    assert _hub(tmp_path, best_ckpt='/moved/from/best_x_epoch_1.pth') == dict(best_ckpt=own)
    for name in ('best_victim.pth', 'run/../best_victim.pth', 'run/best_link.pth', 'run/notes.txt', 'run', ''):
        assert not _hub(tmp_path, best_ckpt_x=str(tmp_path / name)), name
    for key in ('keep_ckpt_ids', 'timed_checkpoints'):
        for numbers in (['../../x'], [True], 3, [1.5], '12'):
            with pytest.raises(CheckpointError, match='must be a list of whole numbers'):
                _hub(tmp_path, **{key: numbers})
    with pytest.raises(CheckpointError, match="its best_score must be a number; got 'high'"):
        _hub(tmp_path, best_score='high')
    info = dict(best_ckpt=own, keep_ckpt_ids=[1], timed_checkpoints=[3])
    own_files_only(info, tmp_path / 'elsewhere' / 'epoch_1.pth', [tmp_path / 'run'])
    assert not info  # of another run


def test_the_newest_checkpoint_is_the_last(tmp_path: Path) -> None:
    """One between, in the folder, and the config's own, in a folder of its own."""
    between, own, note = tmp_path / 'iter_30.pth', tmp_path / 'own' / 'mine_2.pth', tmp_path / 'last_checkpoint'
    own.parent.mkdir()
    for age, file in enumerate((between, own)):
        file.touch()
        os.utime(file, (100 - age, 100 - age))
    note.write_text(str(own))
    assert latest_checkpoint(tmp_path) == between
    os.utime(own, (200, 200))
    assert latest_checkpoint(tmp_path) == own
    own.unlink()
    assert latest_checkpoint(tmp_path) == between
    between.unlink()
    with pytest.raises(CheckpointError, match='which is gone: give a checkpoint'):
        latest_checkpoint(tmp_path)


def test_the_folder_of_a_run_stands_for_its_last_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / 'run'
    run.mkdir()
    with pytest.raises(CheckpointError, match=r'run. is a folder without checkpoints of a run'):
        read_checkpoint(run)
    for epoch in (9, 10):
        torch.save(dict(epoch=epoch), run / f'epoch_{epoch}.pth')
        os.utime(run / f'epoch_{epoch}.pth', (epoch, epoch))
    assert read_checkpoint(str(run))['epoch'] == 10
    assert run_folder(str(run)) is None
    (run / 'last_checkpoint').write_text(str(run / 'epoch_10.pth'))
    assert run_folder(str(run)) == run_folder(str(run / 'epoch_9.pth')) == str(run)


class Toy(BaseModel):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, *samples, mode='loss'):
        return dict(loss=self.norm(torch.stack(samples)).sum())


@pytest.mark.slow
def test_each_process_takes_its_own_statistics_beside_an_average_of_mmengine(tmp_path: Path) -> None:
    """In the file, EMAHook's average stands where the weights are looked for."""

    def start(**options):
        loader = dict(batch_size=2, dataset=list(torch.randn(4, 2)), sampler=dict(type='DefaultSampler', shuffle=False))
        return Runner(
            Toy(),
            str(tmp_path),
            train_dataloader=loader,
            train_cfg=dict(by_epoch=True, max_epochs=2),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            custom_hooks=[dict(type='EMAHook', momentum=0.5)],
            default_scope='mmengine',
            experiment_name=f'ema_{options}',
            **options,
        )

    first = start()
    first.train()
    checkpoint = read_checkpoint(tmp_path / 'epoch_1.pth')
    rows = {
        key: [{'norm.running_mean': torch.full((2,), 10.0 * rank + place)} for rank in range(2)]
        for place, key in enumerate(('state_dict', 'EMAHook'))
    }
    torch.save(dict(checkpoint, buffers_of_ranks=rows), tmp_path / 'from.pth')
    for rank, world_size in ((0, 2), (1, 2), (0, 1)):
        resumed = start(resume=True, load_from=str(tmp_path / 'from.pth'))
        resumed._rank, resumed._world_size, resumed.cfg.resume_anyway = rank, world_size, True
        resumed.call_hook('before_run')
        resumed._train_loop = resumed.build_train_loop(resumed._train_loop)
        resumed.optim_wrapper = resumed.build_optim_wrapper(resumed.optim_wrapper)
        resumed.load_or_resume()
        average = next(hook.ema_model.module for hook in resumed.hooks if isinstance(hook, EMAHook))
        found = [model.norm.running_mean[0].item() for model in (resumed.model, average)]
        saved = checkpoint['ema_state_dict']['module.norm.running_mean'][0].item()
        assert found == ([10.0 * rank, 10.0 * rank + 1] if world_size == 2 else [saved, saved])
    assert collect_for(first) == {}


def test_what_no_checkpoint_holds_is_found_wherever_it_stands() -> None:
    mosaic = dict(type='mmdet.CachedMosaic', img_scale=(64, 64))
    cfg = Config(
        dict(
            train_dataloader=dict(dataset=dict(type='Wrapper', dataset=dict(pipeline=[dict(type='Flip'), mosaic]))),
            default_hooks=dict(stop=dict(type=EarlyStoppingHook)),
        )
    )
    assert forgetful(cfg) == ['CachedMosaic', 'EarlyStoppingHook']
    assert forgetful(Config(dict(model=dict(type='mmdet.RetinaNet')))) == []


def test_only_half_written_checkpoints_are_cleared_away(tmp_path: Path) -> None:
    """Somebody's half of a download is none."""
    ours, theirs = ['epoch_3.pth.part', 'best_a.pth.part', 'room.part'], ['film.mkv.part', 'a.part', 'epoch_2.pth']
    for name in ours + theirs:
        (tmp_path / name).touch()
    _start_alone(str(tmp_path)).release()
    assert {path.name for path in tmp_path.iterdir()} - {'.lock'} == set(theirs)


@pytest.mark.slow
def test_a_work_directory_that_mmengine_cannot_take_down_is_refused_at_the_start(tmp_path: Path) -> None:
    """MMEngine notes the name of a checkpoint in UTF-8; the run ended after its first one."""
    with pytest.raises(ValueError, match=r"caf\\udce9' is not UTF-8, .*name another --work-dir"):
        _start_alone(str(tmp_path / os.fsdecode(b'caf\xe9')))


def test_intervals() -> None:
    found = [parse_interval(text) for text in ('90s', '15min', '1.5h', '500it')]
    assert found == [(90, False), (900, False), (5400, False), (500, True)]
    for text in ('15', 'min', '0s', '-3s', '1d', '3 min s'):
        with pytest.raises(ValueError, match='--save-every takes a time'):
            parse_interval(text)


class Rising(BaseMetric):
    """Better at each validation."""

    seen = 0

    def process(self, batch: object, samples: object) -> None:
        self.results.append(1)

    def compute_metrics(self, results: list) -> dict[str, float]:
        Rising.seen += 1
        return dict(score=float(Rising.seen))


class Scored(Toy):
    def forward(self, *samples, mode='loss'):
        return [BaseDataElement()] if mode == 'predict' else super().forward(*samples)


@pytest.mark.parametrize('place', [2, 4])
def test_a_resumed_run_saves_wherever_an_uninterrupted_one_does(place: int, tmp_path: Path) -> None:
    """With each best one MMEngine saves once more, in between; there processes average gradients, which rounds."""

    def start(folder: Path, **options) -> Runner:
        data = dict(batch_size=2, dataset=list(torch.randn(8, 2)))
        return Runner(
            Scored(),
            str(folder),
            train_dataloader=dict(data, sampler=dict(type='InfiniteSampler')),
            val_dataloader=dict(data, sampler=dict(type='DefaultSampler', shuffle=False)),
            train_cfg=dict(by_epoch=False, max_iters=7, val_interval=3),
            val_cfg={},
            val_evaluator=Evaluator(Rising()),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1), accumulative_counts=2),
            default_hooks=dict(
                checkpoint=dict(
                    type='mmsoft.LastingCheckpointHook', by_epoch=False, interval=2, save_best='score', rule='greater'
                )
            ),
            custom_hooks=[dict(type='mmsoft.MakeUpValidation')],
            default_scope='mmengine',
            experiment_name=f'saving_{place}_{folder.name}',
            **options,
        )

    start(tmp_path / 'whole').train()
    source = tmp_path / 'whole' / f'iter_{place}.pth'
    start(tmp_path / 'resumed', resume=True, load_from=str(source)).train()
    whole, resumed = (
        {int(path.stem.split('_')[1]) for path in (tmp_path / name).glob('iter_*.pth')} for name in ('whole', 'resumed')
    )
    assert whole == {2, 3, 4, 6, 7}
    assert resumed == {number for number in whole if number > place}
