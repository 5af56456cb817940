"""MMEngine's loops, made to go on at any iteration without reading what was done."""

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop
from mmengine.runner.loops import _InfiniteDataloaderIterator
from torch.utils.data import BatchSampler, Sampler


class RemainingBatches:
    """A batch sampler that leaves out its first ``done`` batches, once.

    Their indices are drawn and dropped: every sample keeps its place in the run, pictures meet the same others in
    batches of one shape, and nothing is read in vain.
    """

    def __init__(self, batches: BatchSampler) -> None:
        self.batches, self.done = batches, 0

    def __iter__(self) -> Iterator[list[int]]:
        # not before the first batch is asked for: a loader with workers calls iter twice
        done, self.done = self.done, 0
        yield from islice(self.batches, done, None)

    def __len__(self) -> int:
        return len(self.batches)

    @property
    def sampler(self) -> Sampler:
        return self.batches.sampler

    @property
    def batch_size(self) -> int:
        return self.batches.batch_size


class EpochLoop(EpochBasedTrainLoop):
    """``first`` is the iteration that the epoch began with; what was done since is not done again."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.first = 0
        self.batches = RemainingBatches(self.dataloader.batch_sampler)
        vars(self.dataloader)['batch_sampler'] = self.batches  # not by assignment, which a loader forbids

    def run_epoch(self) -> None:
        self.batches.done = self._iter - self.first
        super().run_epoch()
        self.first = self._iter

    def run_iter(self, idx: int, data_batch: Any) -> None:
        super().run_iter(self._iter - self.first, data_batch)

    def done(self, epoch: int, iteration: int) -> int:
        """Batches of this epoch that are done at this iteration."""
        return iteration - self.first if epoch == self._epoch else 0


class IterationLoop(IterBasedTrainLoop):
    """The original MMEngine asks for every batch that was done: it gets nothing so often, and then what is left."""

    def run(self) -> None:
        loader = self.dataloader
        if self._iter and not hasattr(self.dataloader_iterator, 'skip_iter') and hasattr(loader.sampler, 'skip'):
            loader.sampler.skip(self._iter * loader.batch_size)
            self.dataloader_iterator = chain(repeat(None, self._iter), _InfiniteDataloaderIterator(loader))
        super().run()


LOOPS = dict(EpochBasedTrainLoop=EpochLoop, IterBasedTrainLoop=IterationLoop)
