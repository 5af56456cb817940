"""Files of strangers: whatever they hold, no code of theirs runs, and nothing crashes."""

import pytest
import torch
from mmengine.model import BaseModel

from mmsoft.checkpoints import CheckpointError, read_checkpoint
from mmsoft.checkpoints.meta import KNOWN
from mmsoft.engine.runner import Runner


class Toy(BaseModel):
    def __init__(self, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.line = torch.nn.Linear(2, 2)

    def forward(self, *pictures, mode='loss'):
        return dict(loss=self.line(torch.stack(pictures)).square().mean())


def runner(work_dir, name, **options):
    return Runner(
        Toy(),
        str(work_dir),
        train_dataloader=dict(
            batch_size=2, dataset=list(torch.randn(4, 2)), sampler=dict(type='DefaultSampler', shuffle=False)
        ),
        train_cfg=dict(by_epoch=True, max_epochs=options.pop('max_epochs', 1)),
        optim_wrapper=dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3)),
        param_scheduler=[dict(type='MultiStepLR', milestones=[1, 2])],
        default_scope='mmengine',
        experiment_name=name,
        **options,
    )


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A checkpoint that a training wrote."""
    folder = tmp_path_factory.mktemp('trained')
    runner(folder, 'trained').train()
    return folder / 'epoch_1.pth'


def test_resuming_runs_no_config_of_the_checkpoint(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = read_checkpoint(trained, trust=True)
    code = "__import__('pathlib').Path('ran').touch()\n"
    content['meta'] |= dict(config=code, cfg=code, other=code, mmsoft=dict(lr=0.1, classes=['a'], name='b'))
    torch.save(content, 'hostile.pth')
    resumed = runner(tmp_path, 'resumed', max_epochs=2, resume=True, load_from='hostile.pth')
    seen = []
    monkeypatch.setattr(resumed, 'call_hook', lambda name, **kwargs: seen.append(kwargs.get('checkpoint')))
    resumed.load_or_resume()
    (checkpoint,) = filter(None, seen)
    assert set(checkpoint['meta']) <= set(KNOWN)
    assert checkpoint['meta']['mmsoft'] == dict(lr=0.1, classes=['a'], name='b')
    assert not (tmp_path / 'ran').exists()
    assert (resumed.epoch, resumed.iter) == (1, 2)
    for wrong, message in (
        (dict(epoch='1'), r'meta\.epoch is not made of plain values \(a str\)'),
        (dict(dataset_meta=dict(classes=[torch.zeros(1)])), r'meta\.dataset_meta is not made of plain values'),
        (dict(seed=[1]), r'meta\.seed'),
    ):
        torch.save(dict(content, meta=content['meta'] | wrong), 'wrong.pth')
        with pytest.raises(CheckpointError, match=message):
            runner(tmp_path, f'wrong_{next(iter(wrong))}', resume=True, load_from='wrong.pth').load_or_resume()
    torch.save(dict(content, meta=dict(iter=3)), 'wrong.pth')
    with pytest.raises(CheckpointError, match='its meta has no epoch'):
        runner(tmp_path, 'no_epoch', resume=True, load_from='wrong.pth').load_or_resume()
