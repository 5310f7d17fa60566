"""Batches of sentence pairs of similar length within a token budget, optionally with BPE dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.data.batch import Batch, Ids, collate, rounded_up
from regard.data.loader import Loader, Place, Rows
from regard.data.text.pair_store import PairStore
from regard.data.tokenizers.bpe_dropout import PairSampler
from regard.errors import ConfigError, DataError

IdPair = tuple[Ids, Ids]

MEASURED = 1000  # pairs segmented again to measure how much sampling lengthens them
DRAWN = 7  # tells the order of the rows of a group from other draws of the same seed
MARGIN = 1.1  # reserve in a batch for segmentations longer than the average


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
    """The rows of each batch of an epoch: every pair once, in an order that (seed, epoch) decides.

    Pairs are shuffled, sorted by length within pools of `pool` pairs, cut into batches, and the batches shuffled.
    A batch's padded size, sentences x the longest sequence of either side, never exceeds `batch_tokens`, except that a
    pair longer than that is a batch of its own.
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


@dataclass(frozen=True)
class RowGroup:
    """Rows from `first` to before `end`, of which `count` are drawn in each epoch; None: all of them, once.

    They are drawn in an order that the seed decides, so that all of them are used before any is repeated.
    """

    first: int
    end: int
    count: int | None = None

    def rows(self, seed: int, epoch: int) -> Rows:
        """The rows of this epoch."""
        if self.count is None:
            return np.arange(self.first, self.end)
        order = self.first + np.random.default_rng([seed, DRAWN]).permutation(self.end - self.first)
        return order[np.arange(epoch * self.count, (epoch + 1) * self.count) % max(len(order), 1)]


class PairLoader(Loader[Batch]):
    """A loader of the sentence pairs of a store."""

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
        groups: Sequence[RowGroup] = (),
        workers: int = 0,
        pin: bool = False,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        source, target = store.lengths()
        self._lengths = source.astype(np.int32), target.astype(np.int32)  # kept in memory
        _refuse_unusable(store, self._lengths, max_length)
        self.batch_tokens, self.seed, self.max_sentences = batch_tokens, seed, max_sentences
        self.round_lengths, self.groups = round_lengths, groups
        self._resampler = (
            None if sampler is None else Resampler(store, sampler, batch_tokens, max_length, round_lengths)
        )
        make = PairBatches(store, pad, start, seed, self._resampler, round_lengths)
        super().__init__(self._plan, make, workers=workers, pin=pin, rank=rank, world=world)

    def _plan(self, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch."""
        source, target = self._lengths
        if self._resampler is not None:
            source, target = (np.ceil(side * self._resampler.growth).astype(np.int64) for side in self._lengths)
        rows = np.concatenate([group.rows(self.seed, epoch) for group in self.groups]) if self.groups else None
        if rows is not None:
            source, target = source[rows], target[rows]
        batches = plan_batches(
            rounded_up(source, self.round_lengths),
            rounded_up(target, self.round_lengths),
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=epoch,
            max_sentences=self.max_sentences,
        )
        return batches if rows is None else [rows[batch] for batch in batches]


class PairBatches:
    """Makes a batch of sentence pairs."""

    def __init__(
        self, store: PairStore, pad: int, start: int, seed: int, resampler: Resampler | None, round_lengths: int = 1
    ) -> None:
        self._store, self._pad, self._start, self._seed, self._resampler = store, pad, start, seed, resampler
        self._round_lengths = round_lengths

    def __call__(self, rows: Rows, place: Place) -> Batch:
        pairs: list[IdPair] = [self._store.pair(row) for row in rows.tolist()]
        if self._resampler is not None:
            pairs = self._resampler.resample(rows, pairs, np.random.default_rng([self._seed, *place]))
        sources, targets = zip(*pairs, strict=True)
        links = [self._store.links(row) for row in rows.tolist()] if self._store.has_links else None
        batch = collate(sources, targets, pad=self._pad, start=self._start, links=links, multiple=self._round_lengths)
        self._store.let_go()
        return batch


class Resampler:
    """Segments the words of a batch again (BPE dropout) within the token budget that the batch was planned for."""

    def __init__(
        self, store: PairStore, sampler: PairSampler, batch_tokens: int, max_length: int | None, round_lengths: int
    ) -> None:
        if not store.has_text:
            raise ConfigError(f"subword dropout needs the texts, {store.folder} has none; encode with keep_text=True.")
        self._store, self._sampler, self._batch_tokens = store, sampler, batch_tokens
        self._max_length, self._round_lengths = max_length or batch_tokens, round_lengths
        self.growth = self._measured_growth()

    def resample(self, rows: Rows, pairs: Sequence[IdPair], rng: np.random.Generator) -> list[IdPair]:
        """New segmentations; a draw that does not fit into the batch is replaced by the stored segmentation."""
        most = self._batch_tokens // len(pairs)
        longest = min(most - most % self._round_lengths, self._max_length)
        return [
            (fresh[0] if len(fresh[0]) <= longest else stored[0], fresh[1] if len(fresh[1]) <= longest else stored[1])
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
