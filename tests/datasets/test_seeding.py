"""What a sample looks like depends on the seed and its place in the run, and on nothing else."""

import random
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.registry import DATA_SAMPLERS, DATASETS, DefaultScope
from mmengine.runner import Runner
from mmengine.runner.loops import _InfiniteDataloaderIterator
from small_worlds import SCOPES, config, safely

from mmsoft.datasets import seeding
from mmsoft.datasets.miniature import FOLDERS
from mmsoft.datasets.reading import read_faults

AUGMENT = dict(
    coco=[
        dict(type='RandomChoiceResize', scales=[(96, 64), (80, 48)], keep_ratio=False),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
    ],
    ade20k=[
        dict(type='RandomCrop', crop_size=(32, 32)),
        dict(type='RandomFlip', prob=0.5),
        dict(type='PhotoMetricDistortion'),
    ],
)


def loader(
    world: str, root: Path, record: Path, sampler: str, workers: int = 0, seed: int | None = 7, **options
) -> torch.utils.data.DataLoader:
    """A training loader as mmengine builds it; the image of index 0 is unreadable, so that others are drawn."""
    pipeline = config(world, root)['pipeline']
    pipeline = safely([*pipeline[:2], *AUGMENT[world], pipeline[2]], record, training=True)
    if world == 'coco':
        options['batch_sampler'] = dict(type='AspectRatioBatchSampler')
    settings = dict(
        batch_size=2,
        num_workers=workers,
        persistent_workers=workers > 0,
        sampler=dict(type='mmsoft.SeededSampler', sampler=dict(type=sampler, shuffle=True)),
        dataset=dict(type='mmsoft.SeededDataset', dataset=config(world, root, split='train', pipeline=pipeline)),
        **options,
    )
    with DefaultScope.overwrite_default_scope(SCOPES[world]):
        built = Runner.build_dataloader(settings, seed=seed)
    assert built.dataset.dataset._fully_initialized
    Path(built.dataset.get_data_info(0)['img_path']).write_bytes(b'')
    return built


def flatten(batches: Iterator[dict]) -> list[tuple[str, torch.Tensor]]:
    return [
        (sample.img_path, image)
        for batch in batches
        for image, sample in zip(batch['inputs'], batch['data_samples'], strict=True)
    ]


def epoch_of(built: torch.utils.data.DataLoader, epoch: int) -> list[tuple[str, torch.Tensor]]:
    built.batch_sampler.sampler.set_epoch(epoch)  # as mmengine's hook does
    return flatten(built)


def same(some: list, others: list) -> bool:
    return len(some) == len(others) and all(
        path == other and torch.equal(image, second)
        for (path, image), (other, second) in zip(some, others, strict=True)
    )


@pytest.fixture
def coco(worlds: Path, tmp_path: Path) -> Path:
    shutil.copytree(worlds / 'coco', tmp_path / 'coco')
    return tmp_path


@pytest.fixture
def ade20k(worlds: Path, tmp_path: Path) -> Path:
    shutil.copytree(worlds / FOLDERS['ade20k'], tmp_path / FOLDERS['ade20k'])
    return tmp_path


class Draws:
    """A data set that draws from every generator, and offers batches of its own."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple:
        assert type(index) is int
        return index, random.random(), np.random.rand(), torch.rand(()).item()

    def __getitems__(self, indices: list) -> list:
        return [self[int(index)] for index in indices]  # without seeds


def test_every_generator_is_seeded_by_epoch_and_place() -> None:
    built = Runner.build_dataloader(
        dict(
            batch_size=2,
            sampler=dict(type='mmsoft.SeededSampler', sampler=dict(type='DefaultSampler', shuffle=False)),
            dataset=dict(type='mmsoft.SeededDataset', dataset=dict(type=Draws)),
            collate_fn=list,
        ),
        seed=7,
    )
    epochs = []
    for epoch in (0, 1, 0):
        built.sampler.set_epoch(epoch)
        epochs.append([sample for batch in built for sample in batch])
    assert [sample[0] for sample in epochs[0]] == [0, 1, 2, 3]
    assert epochs[0] == epochs[2]
    drawn = [number for epoch in epochs[:2] for sample in epoch for number in sample[1:]]
    assert len(set(drawn)) == len(drawn) == 24


@pytest.mark.slow
def test_samples_depend_on_seed_and_epoch_not_on_workers(coco: Path) -> None:
    reference = loader('coco', coco, coco / 'faults', 'DefaultSampler')
    first, second = epoch_of(reference, 0), epoch_of(reference, 1)
    assert len(first) == len(second) == 8
    assert not same(first, second)
    assert read_faults(coco / 'faults')
    assert same(epoch_of(reference, 0), first)
    for options in (dict(workers=2), dict(workers=1, multiprocessing_context='spawn')):
        other = loader('coco', coco, coco / 'faults', 'DefaultSampler', **options)
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        assert same(epoch_of(other, 0), first)
        assert same(epoch_of(other, 1), second)
    different = epoch_of(loader('coco', coco, coco / 'faults', 'DefaultSampler', seed=8), 0)
    assert not same(sorted(different, key=lambda pair: pair[0]), sorted(first, key=lambda pair: pair[0]))


@pytest.mark.slow
@pytest.mark.parametrize('sampler', ['DefaultSampler', 'InfiniteSampler'])
def test_two_processes_draw_what_one_does(sampler: str, ade20k: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(rank: int, processes: int, count: int) -> list:
        for module in ('mmengine.dataset.sampler', 'mmsoft.datasets.seeding'):
            monkeypatch.setattr(f'{module}.get_dist_info', lambda: (rank, processes))
        built = loader('ade20k', ade20k, ade20k / 'faults', sampler)
        built.sampler.set_epoch(3)
        return flatten(islice(built, count))

    batches = dict(DefaultSampler=4, InfiniteSampler=8)[sampler]  # one epoch of 8 images, or two
    alone = draw(0, 1, batches)
    ranks = [draw(0, 2, batches // 2), draw(1, 2, batches // 2)]
    merged = [pair for pairs in zip(*ranks, strict=True) for pair in pairs]
    assert len(alone) == 2 * batches
    assert same(merged, alone)


def test_a_resumed_stream_goes_on_as_if_uninterrupted(ade20k: Path) -> None:
    whole = flatten(islice(loader('ade20k', ade20k, ade20k / 'faults', 'InfiniteSampler', workers=2), 8))
    resumed = loader('ade20k', ade20k, ade20k / 'faults', 'InfiniteSampler')
    read = []
    resumed.dataset.dataset.pipeline.transforms.insert(0, lambda results: read.append(1) or results)
    if hasattr(_InfiniteDataloaderIterator, 'skip_iter'):
        iterator = _InfiniteDataloaderIterator(resumed)
        iterator.skip_iter(5)
    else:  # in the original MMEngine, IterationLoop does it
        resumed.sampler.skip(10)
        iterator = _InfiniteDataloaderIterator(resumed)
    assert not read  # nothing is loaded in vain
    assert same(flatten(islice(iterator, 3)), whole[10:])


def test_what_hooks_set_reaches_the_data_set(coco: Path) -> None:
    with DefaultScope.overwrite_default_scope('mmdet'):
        dataset = DATASETS.build(dict(type='mmsoft.SeededDataset', dataset=config('coco', coco)))
    dataset.pipeline = 'another'
    assert dataset.dataset.pipeline == 'another'


def repeated(monkeypatch, epoch, rank=0, processes=1, seed=7, repeats=3, count=600):
    """What a process reads in an epoch: (sample, seed of its augmentation)."""
    monkeypatch.setattr(seeding, 'get_dist_info', lambda: (rank, processes))
    inner = dict(type='mmsoft.RepeatedSampler', num_repeats=repeats)
    sampler = DATA_SAMPLERS.build(
        dict(type='mmsoft.SeededSampler', sampler=inner, dataset=range(count), seed=seed)  # any data set has a length
    )
    sampler.set_epoch(epoch)
    found = [(int(index), index.seed) for index in sampler]
    assert len(found) == len(sampler)
    return found


@pytest.mark.parametrize('processes', [1, 2])
def test_samples_are_repeated_and_augmented_anew(monkeypatch, processes):
    """Three times in a row, over the processes; an epoch is as long as without, in another order each time."""
    ranks = [repeated(monkeypatch, 0, rank, processes) for rank in range(processes)]
    together = [entry for entries in zip(*ranks, strict=True) for entry in entries]
    assert len(together) == 512  # 600, rounded down to 256
    assert len({seed for _, seed in together}) == 512
    samples = [sample for sample, _ in together]
    assert all(len(set(samples[i : i + 3])) == 1 for i in range(0, 512, 3))
    assert len(set(samples)) == 171
    assert [repeated(monkeypatch, 0, rank, processes) for rank in range(processes)] == ranks
    for other in (dict(epoch=1), dict(epoch=0, seed=8)):
        assert [sample for sample, _ in repeated(monkeypatch, processes=processes, **other)] != samples[::processes]
    for wrong in (1, 2.5):
        with pytest.raises(ValueError, match='num_repeats must be an integer of at least 2'):
            repeated(monkeypatch, 0, repeats=wrong)
