"""Random augmentations as a function of the run's seed and the sample's place in the run, and of nothing else.

Every index that the sampler hands out carries a seed of its own, and the data set sets the generators
from it. So a resumed run sees what an uninterrupted one would have, and neither the number of workers
nor that of processes changes what a sample looks like. Transforms that keep samples between calls, such as
mmdet's CachedMosaic, are the exception.
"""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from mmengine import registry
from mmengine.dataset import InfiniteSampler
from mmengine.dist import get_dist_info, sync_random_seed
from torch.utils.data import Sampler

from mmsoft.ops.checks import whole
from mmsoft.registry import DATA_SAMPLERS, DATASETS
from mmsoft.versions import require


def mix_seeds(*numbers: int) -> int:
    """One 32-bit seed from several numbers; neighbouring numbers give unrelated seeds."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


class SeededIndex(int):
    """An index of a data set, with the seed of what is drawn for it."""

    def __new__(cls, index: int, seed: int) -> 'SeededIndex':
        self = super().__new__(cls, index)
        self.seed = seed
        return self

    def __getnewargs__(self) -> tuple[int, int]:
        return int(self), self.seed  # how it travels to a worker process


@DATA_SAMPLERS.register_module()
class SeededSampler(Sampler):
    """Another sampler's indices as SeededIndex: seeded by run, epoch and position in the stream of all processes."""

    def __init__(self, dataset: Any, sampler: dict, seed: int | None = None) -> None:
        self.dataset, self.epoch, self.start = dataset, 0, 0
        self.seed = sync_random_seed() if seed is None else seed
        self.rank, self.world_size = get_dist_info()
        self.sampler = registry.DATA_SAMPLERS.build(sampler, default_args=dict(dataset=dataset, seed=self.seed))
        if hasattr(self.sampler, 'skip') or isinstance(self.sampler, InfiniteSampler):
            self.skip = self._skip  # MMEngine looks for it, to resume without reading the data once more

    def __iter__(self) -> Iterator[SeededIndex]:
        for count, index in enumerate(self.sampler, start=self.start):
            place = count * self.world_size + self.rank
            yield SeededIndex(index, mix_seeds(self.seed, self.epoch, place))

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, 'set_epoch'):
            self.sampler.set_epoch(epoch)

    def _skip(self, count: int) -> None:
        """Go on after ``count`` samples of this process."""
        self.start = count
        if hasattr(self.sampler, 'skip'):
            self.sampler.skip(count)
        else:  # of the original MMEngine
            self.sampler.indices = islice(self.sampler._indices_of_rank(), count, None)


@DATA_SAMPLERS.register_module()
class RepeatedSampler(Sampler):
    """timm's repeated augmentation (Hoffer et al., "Augment your batch", CVPR 2020).

    Each sample comes ``num_repeats`` times, to other processes where there are several, and to be augmented anew. An
    epoch is as long as ever (its length rounded to 256): it sees a part of the samples, other ones each time.
    """

    def __init__(self, dataset: Any, num_repeats: int = 3, seed: int | None = None) -> None:
        require('timm')
        from timm.data.distributed_sampler import RepeatAugSampler

        rank, world_size = get_dist_info()
        self.seed = sync_random_seed() if seed is None else seed
        self.sampler = RepeatAugSampler(dataset, world_size, rank, num_repeats=whole('num_repeats', num_repeats, 2))
        self.set_epoch(0)

    def __iter__(self) -> Iterator[int]:
        return iter(self.sampler)

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(mix_seeds(self.seed, epoch))  # all that timm seeds its order with


@DATASETS.register_module()
class SeededDataset:
    """Another data set whose random transforms draw from the seed of the index; all else is passed through."""

    def __init__(self, dataset: dict) -> None:
        self.dataset = registry.DATASETS.build(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        if isinstance(index, SeededIndex):
            random.seed(index.seed)
            np.random.seed(index.seed)
            torch.default_generator.manual_seed(index.seed)
        return self.dataset[int(index)]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == 'dataset':
            super().__setattr__(name, value)
        else:  # hooks change pipelines so
            setattr(self.dataset, name, value)

    def __getattr__(self, name: str) -> Any:
        # the data set is not there yet while unpickling; `__getitems__` and the like would pass by the seeds
        if name == 'dataset' or name.startswith('__'):
            raise AttributeError(f'{type(self).__name__} has no {name!r}')
        return getattr(self.dataset, name)
