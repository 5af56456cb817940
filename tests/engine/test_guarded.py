"""The config stays as it is written; what a run needs besides is built around it."""

import pytest
from mmengine.config import Config
from mmengine.hooks import CheckpointHook
from small_runs import dump, small_config

from mmsoft.checkpoints import read_checkpoint
from mmsoft.engine.config import load_config
from mmsoft.engine.guarded import EvaluationRunner, TrainingRunner
from mmsoft.engine.hooks import LastingCheckpointHook, ReportFaults, SeedEachIteration, StopAtInvalidLoss
from mmsoft.engine.training import evaluate, train

OF_THE_COMMAND = ('launcher', 'work_dir', 'resume', 'load_from', 'randomness')
OF_OURS = ('trust_checkpoint', 'resume_anyway', 'save_every')


@pytest.mark.slow
def test_what_is_kept_is_what_was_written_and_asked_for(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=2, epochs=1)
    cfg.sync_bn, cfg.train_dataloader.pin_memory = 'torch', True  # without effect on a CPU
    cfg.train_dataloader.persistent_workers = True  # without effect where there are no workers
    file, folder = dump(cfg, tmp_path), str(tmp_path / 'run')
    written = load_config(file).to_dict()
    train(load_config(file), work_dir=folder, seed=3, save_every='500it')
    asked = dict(work_dir=folder, save_every='500it', randomness=dict(seed=3))
    texts = [
        (tmp_path / 'run' / 'small.py').read_text(),
        read_checkpoint(tmp_path / 'run' / 'epoch_1.pth')['meta']['cfg'],
    ]
    for text in texts:
        kept = Config.fromstring(text, '.py').to_dict()
        changed = {key for key in {*kept, *written} if kept.get(key, ...) != written.get(key, ...)}
        assert changed <= {*OF_THE_COMMAND, *OF_OURS}
        assert {key: kept[key] for key in asked} == asked
    started = load_config(file, dict(load_from='gone.pth'))
    evaluate(started, f'{folder}/epoch_1.pth', work_dir=str(tmp_path / 'test'), out=str(tmp_path / 'all.pkl'))
    tested = Config.fromfile(tmp_path / 'test' / 'small.py').to_dict()
    assert tested['load_from'] == 'gone.pth'  # which a test has no use for
    changed = {key for key in {*tested, *written} if tested.get(key, ...) != written.get(key, ...)}
    assert changed <= {*OF_THE_COMMAND, *OF_OURS}
    evaluate(load_config(file), f'{folder}/epoch_1.pth', work_dir=folder)
    assert (tmp_path / 'run' / 'small.py').read_text() == texts[0]


def test_a_config_may_bring_hooks_of_its_own_in_place_of_ours(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=2)
    cfg.custom_hooks = [dict(type='mmsoft.StopAtInvalidLoss', interval=7)]
    cfg.work_dir = str(tmp_path / 'run')
    hooks = TrainingRunner.from_cfg(cfg).hooks
    assert [hook.interval for hook in hooks if isinstance(hook, StopAtInvalidLoss)] == [7]
    assert [type(hook) for hook in hooks if isinstance(hook, CheckpointHook)] == [LastingCheckpointHook]
    assert sum(isinstance(hook, SeedEachIteration) for hook in hooks) == 1
    hooks = EvaluationRunner.from_cfg(cfg).hooks
    (report,) = (hook for hook in hooks if isinstance(hook, ReportFaults))
    assert report.record == str(tmp_path / 'run' / 'test_faults.jsonl')
    assert not any(isinstance(hook, SeedEachIteration) for hook in hooks)


def test_the_pipeline_of_the_last_epochs_reads_safely_too(tmp_path):
    cfg = small_config('retinanet', tmp_path / 'data', train=2)
    cfg.work_dir = str(tmp_path / 'run')
    pipeline = cfg.train_dataloader.dataset.pipeline
    cfg.custom_hooks = [dict(type='mmdet.PipelineSwitchHook', switch_epoch=1, switch_pipeline=pipeline)]
    hooks = TrainingRunner.from_cfg(cfg).hooks
    (steps,) = (hook.switch_pipeline for hook in hooks if hasattr(hook, 'switch_pipeline'))
    assert [step['type'] for step in steps[:2]] == ['mmsoft.ReadSafely'] * 2
    assert [step['loader'] for step in steps[:2]] == pipeline[:2]
    assert steps[2:] == pipeline[2:]
    assert {step['record'] for step in steps[:2]} == {str(tmp_path / 'run' / 'faults.jsonl')}


@pytest.mark.slow
def test_a_config_for_gpus_trains_and_tests_on_a_cpu(tmp_path, monkeypatch):
    """Of RTMDet and Swin: an average of the weights by MMEngine's hook, and mixed precision, which needs a GPU."""
    cfg = small_config('retinanet', tmp_path / 'data', train=2, epochs=1)
    cfg.custom_hooks = [dict(type='EMAHook', ema_type='ExpMomentumEMA', momentum=0.5, update_buffers=True)]
    cfg.optim_wrapper.update(type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16')
    file, folder, told = dump(cfg, tmp_path), tmp_path / 'run', []
    monkeypatch.setattr('mmsoft.engine.training.print_log', lambda line, **_: told.append(line))
    train(load_config(file), work_dir=str(folder))
    assert any("the config's AmpOptimWrapper needs a GPU: this run computes in float32" in line for line in told)
    runner = EvaluationRunner.from_cfg(Config({**load_config(file), 'work_dir': str(tmp_path / 'test')}))
    runner.load_checkpoint(str(folder / 'epoch_1.pth'), strict=True)
    averaged = read_checkpoint(folder / 'epoch_1.pth')['state_dict']
    runner.test()
    assert all(value.equal(averaged[name]) for name, value in runner.model.state_dict().items())
