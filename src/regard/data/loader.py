"""A loader whose batches depend only on a seed and a place, whatever the number of workers and after any restart."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

Rows = NDArray[np.integer[Any]]  # the rows of a data set that make up a batch
Place = tuple[int, int]  # epoch, index of a batch in the epoch's plan
Key = tuple[Place, Place, Rows]
B = TypeVar("B")
T = TypeVar("T")


class Loader(Generic[B]):
    """Yields (epoch, index, batch) without end; the same arguments give the same batch at any place.

    `plan` gives the rows of every batch of an epoch; `make` turns the rows of a batch and its place into tensors.
    Both must depend on their arguments alone; `make` is pickled for the workers.

    With several ranks, each takes one of every `world` successive batches. The place is that of the first batch of such
    a group, the same on every rank. Groups continue across the end of an epoch, so no row is ever left out.
    """

    def __init__(
        self,
        plan: Callable[[int], list[Rows]],
        make: Callable[[Rows, Place], B],
        *,
        workers: int = 0,
        pin: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.plan, self._dataset = plan, _Batches(make)
        self.workers, self.pin, self.rank, self.world = workers, pin, rank, world

    def batches(self, epoch: int = 0, index: int = 0) -> Iterator[tuple[int, int, B]]:
        """Batches from a place on; to continue after (epoch, index), start from (epoch, index + world)."""
        for (at_epoch, at_index), batch in self._loader(epoch, index):
            yield at_epoch, at_index, batch

    def __iter__(self) -> Iterator[tuple[int, int, B]]:
        return self.batches()

    def onward(self, place: Mapping[str, int]) -> Iterator[tuple[dict[str, int], B]]:
        """Batches from a place on, each with the place to continue from after it, the same on every rank."""
        for epoch, index, batch in self.batches(**place):
            yield {"epoch": epoch, "index": index + self.world}, batch

    def _loader(self, epoch: int, index: int) -> Iterator[tuple[Place, B]]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores are allowed
            loader = DataLoader(
                self._dataset,
                batch_size=None,
                sampler=_Endless(lambda: self._keys(epoch, index)),
                collate_fn=_unchanged,
                num_workers=self.workers,
                prefetch_factor=4 if self.workers else None,
                multiprocessing_context=worker_context() if self.workers else None,
                pin_memory=self.pin,
                generator=torch.Generator(),  # its own, since starting a loader advances its generator
            )
            return iter(loader)

    def _keys(self, epoch: int, index: int) -> Iterator[Key]:
        """The input of a worker for each batch: the place of the group, and the place and rows of this rank's batch."""
        planned = self._planned(epoch, index)
        for group in zip(*[planned] * self.world, strict=True):
            yield group[0][0], *group[self.rank]

    def _planned(self, epoch: int, index: int) -> Iterator[tuple[Place, Rows]]:
        while True:
            plan = self.plan(epoch)
            for i in range(index, len(plan)):
                yield (epoch, i), plan[i]
            epoch, index = epoch + 1, max(0, index - len(plan))


class _Endless(Sampler[Key]):
    def __init__(self, keys: Callable[[], Iterator[Key]]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Key]:
        return self._keys()


class _Batches(Dataset[tuple[Place, B]], Generic[B]):
    """Makes the batch of a key, in the workers if there are any."""

    def __init__(self, make: Callable[[Rows, Place], B]) -> None:
        self._make = make

    def __getitem__(self, key: Key) -> tuple[Place, B]:
        group, place, rows = key
        return group, self._make(rows, place)


def _unchanged(item: T) -> T:
    return item


def worker_context() -> BaseContext:
    """Start workers from a clean process, since forking a process with threads (tokenizers, OpenMP) may hang."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
