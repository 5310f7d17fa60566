"""Batches by token budget in length buckets: same seed, same batches, for any number of workers and any restart."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.context import BaseContext
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, Sampler

from regard.data.batch import Batch, Ids, collate, rounded_up
from regard.data.text.bpe_dropout import PairSampler
from regard.data.text.pair_store import PairStore
from regard.errors import ConfigError, DataError

Rows = NDArray[np.integer[Any]]
Place = tuple[int, int]  # epoch, index of a batch in the epoch's plan
Key = tuple[Place, Place, Rows]
IdPair = tuple[Ids, Ids]
B = TypeVar("B")

MEASURED = 1000  # pairs cut again to measure how much sampling lengthens them
MARGIN = 1.1  # room left in a batch for a draw longer than the average


def plan_batches(
    source_lengths: Rows,
    target_lengths: Rows,
    *,
    batch_tokens: int,
    seed: int,
    epoch: int,
    pool: int = 1 << 16,
    max_sentences: int | None = None,
) -> list[Rows]:
    """Rows of each batch of an epoch: every pair once, in an order that (seed, epoch) decides.

    Pairs are shuffled, sorted by length within pools of `pool` pairs, cut into batches, and the batches shuffled.
    A batch's padded size, sentences x the longest sequence of either side, never exceeds `batch_tokens`;
    only a pair that is longer by itself makes a batch of its own.
    """
    rng = np.random.default_rng([seed, epoch])
    sizes = np.maximum(source_lengths, target_lengths)
    order = rng.permutation(len(sizes))
    batches: list[Rows] = []
    for begin in range(0, len(order), pool):
        rows = order[begin : begin + pool]
        rows = rows[np.lexsort((target_lengths[rows], source_lengths[rows], sizes[rows]))]
        cuts = _cuts(sizes[rows], batch_tokens, max_sentences)
        batches += np.split(rows, cuts[1:-1])
    return [batches[i] for i in rng.permutation(len(batches))]


def _cuts(sizes: Rows, batch_tokens: int, max_sentences: int | None) -> list[int]:
    """Where to cut ascending sizes, both ends included, so that count x largest size stays within the budget."""
    cuts = [0]
    while (begin := cuts[-1]) < len(sizes):
        most = max(1, batch_tokens // max(1, int(sizes[begin])))
        if max_sentences is not None:
            most = min(most, max_sentences)
        candidates = sizes[begin : begin + most]
        padded = candidates * np.arange(1, len(candidates) + 1)  # ascending, because sizes are
        cuts.append(begin + max(1, int(np.searchsorted(padded, batch_tokens, side="right"))))
    return cuts


class Loader(Generic[B]):
    """Yields (epoch, index, batch) for ever; with the same arguments any place can be reached again exactly.

    `plan` gives the rows of every batch of an epoch; `make` turns the rows of a batch, with its place, into tensors.
    Both must depend on their arguments alone; `make` travels to the workers.

    With several ranks each takes one of every `world` successive batches, and the place is that of the first of them,
    the same on every rank; these groups run on across the end of an epoch, so no pair is ever left out.
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
        """Batches from a place on; to go on after (epoch, index), start from (epoch, index + world)."""
        for (at_epoch, at_index), batch in self._loader(epoch, index):
            yield at_epoch, at_index, batch

    def __iter__(self) -> Iterator[tuple[int, int, B]]:
        return self.batches()

    def onward(self, place: Mapping[str, int]) -> Iterator[tuple[dict[str, int], B]]:
        """Batches from a place on, each with the place to go on from after it, the same on every rank."""
        for epoch, index, batch in self.batches(**place):
            yield {"epoch": epoch, "index": index + self.world}, batch

    def _loader(self, epoch: int, index: int) -> Iterator[tuple[Place, B]]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # more workers than cores is no mistake
            loader = DataLoader(
                self._dataset,
                batch_size=None,
                sampler=_Endless(lambda: self._keys(epoch, index)),
                collate_fn=_as_it_is,
                num_workers=self.workers,
                prefetch_factor=4 if self.workers else None,
                multiprocessing_context=_worker_context() if self.workers else None,
                pin_memory=self.pin,
                generator=torch.Generator(),  # without it, starting a loader would advance the global generator
            )
            return iter(loader)

    def _keys(self, epoch: int, index: int) -> Iterator[Key]:
        """What a worker needs for each batch: the place of the group, and the place and rows of this rank's batch."""
        planned = self._planned(epoch, index)
        for group in zip(*[planned] * self.world, strict=True):
            yield group[0][0], *group[self.rank]

    def _planned(self, epoch: int, index: int) -> Iterator[tuple[Place, Rows]]:
        while True:
            plan = self.plan(epoch)
            for i in range(index, len(plan)):
                yield (epoch, i), plan[i]
            epoch, index = epoch + 1, max(0, index - len(plan))


class BatchLoader(Loader[Batch]):
    """Sentence pairs of a store."""

    def __init__(
        self,
        store: PairStore,
        *,
        pad: int,
        start: int,
        batch_tokens: int,
        seed: int,
        round_lengths: int = 1,
        max_length: int | None = None,
        max_sentences: int | None = None,
        sampler: PairSampler | None = None,
        workers: int = 0,
        pin: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        source, target = store.lengths()
        self._lengths = source.astype(np.int32), target.astype(np.int32)  # they stay in memory
        _refuse_unusable(store, self._lengths, max_length)
        self.batch_tokens, self.seed, self.max_sentences = batch_tokens, seed, max_sentences
        self.round_lengths = round_lengths
        self._resampler = (
            None if sampler is None else _Resampler(store, sampler, batch_tokens, max_length, round_lengths)
        )
        make = PairBatches(store, pad, start, seed, self._resampler, round_lengths)
        super().__init__(self._plan, make, workers=workers, pin=pin, rank=rank, world=world)

    def _plan(self, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch."""
        source, target = self._lengths
        if self._resampler is not None:
            source, target = (np.ceil(side * self._resampler.growth).astype(np.int64) for side in self._lengths)
        return plan_batches(
            rounded_up(source, self.round_lengths),
            rounded_up(target, self.round_lengths),
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
            max_sentences=self.max_sentences,
        )


class _Endless(Sampler[Key]):
    def __init__(self, keys: Callable[[], Iterator[Key]]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[Key]:
        return self._keys()


class _Batches(Dataset[tuple[Place, B]], Generic[B]):
    """Makes the batch of a key; copies of it run in the workers."""

    def __init__(self, make: Callable[[Rows, Place], B]) -> None:
        self._make = make

    def __getitem__(self, key: Key) -> tuple[Place, B]:
        group, place, rows = key
        return group, self._make(rows, place)


class PairBatches:
    """Makes a batch of sentence pairs."""

    def __init__(
        self, store: PairStore, pad: int, start: int, seed: int, resampler: _Resampler | None, round_lengths: int = 1
    ) -> None:
        self._store, self._pad, self._start, self._seed, self._resampler = store, pad, start, seed, resampler
        self._round_lengths = round_lengths

    def __call__(self, rows: Rows, place: Place) -> Batch:
        pairs: list[IdPair] = [self._store.pair(row) for row in rows.tolist()]
        if self._resampler is not None:
            pairs = self._resampler.again(rows, pairs, np.random.default_rng([self._seed, *place]))
        sources, targets = zip(*pairs, strict=True)
        links = [self._store.links(row) for row in rows.tolist()] if self._store.has_links else None
        batch = collate(sources, targets, pad=self._pad, start=self._start, links=links, multiple=self._round_lengths)
        self._store.let_go()
        return batch


class _Resampler:
    """Cuts the words of a batch anew (BPE dropout) without ever exceeding the budget the batch was planned for."""

    def __init__(
        self, store: PairStore, sampler: PairSampler, batch_tokens: int, max_length: int | None, round_lengths: int
    ) -> None:
        if not store.has_text:
            raise ConfigError(f"subword dropout needs the texts, {store.folder} has none; encode with keep_text=True.")
        self._store, self._sampler, self._batch_tokens = store, sampler, batch_tokens
        self._max_length, self._round_lengths = max_length or batch_tokens, round_lengths
        self.growth = self._measured_growth()

    def again(self, rows: Rows, pairs: Sequence[IdPair], rng: np.random.Generator) -> list[IdPair]:
        """New segmentations; a draw that would not fit into the batch is replaced by the stored segmentation."""
        most = self._batch_tokens // len(pairs)
        room = min(most - most % self._round_lengths, self._max_length)
        return [
            (fresh[0] if len(fresh[0]) <= room else stored[0], fresh[1] if len(fresh[1]) <= room else stored[1])
            for fresh, stored in zip((self._sample(row, rng) for row in rows.tolist()), pairs, strict=True)
        ]

    def _sample(self, row: int, rng: np.random.Generator) -> IdPair:
        text = self._store.text(row)
        return self._sampler.source_ids(text.source, text.to, rng), self._sampler.target_ids(text.target, rng)

    def _measured_growth(self) -> float:
        """How much longer sampled sequences are than the stored ones, with a margin."""
        rows = np.linspace(0, len(self._store) - 1, min(MEASURED, len(self._store)), dtype=np.int64).tolist()
        rng = np.random.default_rng(0)
        sampled = sum(len(side) for row in rows for side in self._sample(row, rng))
        stored = sum(len(side) for row in rows for side in self._store.pair(row))
        return MARGIN * sampled / stored


def _refuse_unusable(store: PairStore, lengths: tuple[Rows, Rows], max_length: int | None) -> None:
    if not len(store):
        raise DataError(f"{store.folder} holds no sentence pair; check the data and its filters.")
    longest = np.maximum(*lengths)
    if max_length is not None and longest.max() > max_length:
        raise DataError(
            f"pair {int(longest.argmax())} of {store.folder} has {longest.max()} tokens, the model takes {max_length};"
            " drop such pairs with the filters or raise the model's limit. Nothing is ever cut in silence."
        )


def _as_it_is(item: Any) -> Any:
    return item


def _worker_context() -> BaseContext:
    """Workers start from a clean process: a fork of one with threads (tokenizers, OpenMP) may hang."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
