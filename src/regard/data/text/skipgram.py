"""Training examples of word2vec: subsampled words, their neighbours in windows of random width, and noise words.

Making a batch must take far less time than learning from it, so a window is one slice of the subsampled text and a
noise word is found without a search.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.loader import Place, Rows
from regard.data.text.token_blocks import TokenStore, split_rows

NOISE = 0.75  # noise words are drawn in proportion to their frequency to this power
RUN = 64  # neighbouring words that stay together when an epoch is shuffled: their windows share most of their words
THINNING, ORDER, DRAWS = range(3)  # uses of random numbers; each has its own stream


@dataclass(frozen=True)
class WindowBatch(TensorBatch):
    """B words of a text, the C words of the window around each of them, and K words drawn at random."""

    words: Int[Tensor, B]
    around: Int[Tensor, "B C"]
    mask: Bool[Tensor, "B C"]  # real neighbours: within reach, in the same line, and not the word itself
    noise: Int[Tensor, "B K"]

    @property
    def tokens(self) -> int:
        """Words."""
        return len(self.words)


class AliasTable(NamedTuple):
    """A distribution from which one number is drawn in constant time (Walker 1977): a column is drawn evenly, and it
    holds at most two numbers, itself and its alias."""

    own: NDArray[np.float64]  # the probability that a column gives itself
    alias: NDArray[np.int32]

    @classmethod
    def of(cls, weights: NDArray[np.floating[Any]]) -> Self:
        """The table of numbers with these weights."""
        own, alias = weights * (len(weights) / weights.sum()), np.arange(len(weights), dtype=np.int32)
        small, large = np.flatnonzero(own < 1).tolist(), np.flatnonzero(own >= 1).tolist()
        while small and large:  # a column below 1 is filled up from one above
            column, other = small.pop(), large[-1]
            alias[column] = other
            own[other] -= 1 - own[column]
            if own[other] < 1:
                small.append(large.pop())
        own[small + large] = 1.0  # what is left differs from 1 by rounding alone
        return cls(own, alias)

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.int32]:
        """Independent draws."""
        column = rng.integers(len(self.own), size=shape, dtype=np.int32)
        return np.where(rng.random(shape) < self.own[column], column, self.alias[column])


class KeptWords(NamedTuple):
    """The words that subsampling keeps in an epoch, with a margin of a window at both ends."""

    words: NDArray[np.int32]
    lines: NDArray[np.int32]  # of each word; -1 in the margins


@dataclass(frozen=True)
class WordWindows:
    """Makes batches of words with their neighbours in the same line, the same for the same (seed, epoch, index)."""

    store: TokenStore
    vocabulary: int
    window: int  # the most words on either side
    negatives: int
    subsample: float  # words with a greater share of the text than this are subsampled; 0 keeps all
    seed: int
    _kept: dict[int, KeptWords] = field(default_factory=dict, repr=False, compare=False)  # cache of the latest epoch

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """How often each word occurs."""
        return np.bincount(self.store.tokens, minlength=self.vocabulary)

    @cached_property
    def keeping(self) -> NDArray[np.float64]:
        """The probability that an occurrence of a word is kept: √(t/f) + t/f, at most 1, as in word2vec's program; the
        paper has √(t/f)."""
        if not self.subsample:
            return np.ones(self.vocabulary)
        ratio = self.subsample * self.counts.sum() / np.maximum(self.counts, 1)
        return np.minimum(np.sqrt(ratio) + ratio, 1.0)

    @cached_property
    def noise(self) -> AliasTable:
        """The distribution of noise words."""
        return AliasTable.of(self.counts**NOISE)

    def kept(self, epoch: int) -> KeptWords:
        """The words that subsampling keeps in an epoch. It is done before windows are formed."""
        if epoch not in self._kept:
            self._kept.clear()
            drawn = np.random.default_rng([self.seed, epoch, THINNING]).random(len(self.store.tokens))
            places = np.flatnonzero(drawn < self.keeping[self.store.tokens])
            lines = np.repeat(np.arange(len(self.store.lines.offsets) - 1), self.store.lines.lengths())
            self._kept[epoch] = KeptWords(
                np.pad(self.store.tokens[places].astype(np.int32), self.window),
                np.pad(lines[places].astype(np.int32), self.window, constant_values=-1),
            )
        return self._kept[epoch]

    def plan(self, epoch: int, size: int) -> list[Rows]:
        """The words of each batch of an epoch, as indices into `kept` without its margin: runs in random order."""
        count = len(self.kept(epoch).words) - 2 * self.window
        runs = np.random.default_rng([self.seed, epoch, ORDER]).permutation(-(-count // RUN))
        order = (runs[:, None] * RUN + np.arange(RUN)).ravel()
        return split_rows(order[order < count], size)

    def __call__(self, rows: Rows, place: Place) -> WindowBatch:
        rng, kept, middle = np.random.default_rng([self.seed, *place, DRAWS]), self.kept(place[0]), self.window
        reach = rng.integers(1, self.window + 1, size=(len(rows), 1), dtype=np.int8)
        distances = np.abs(np.arange(-middle, middle + 1, dtype=np.int8))
        near = rows[:, None] + np.arange(2 * middle + 1)
        words, lines = kept.words[near], kept.lines[near]
        mask = (lines == lines[:, middle : middle + 1]) & (distances <= reach) & (distances > 0)
        noise = self.noise.draw(rng, (len(rows), self.negatives))
        return WindowBatch(*map(torch.from_numpy, (words[:, middle].copy(), words, mask, noise)))

    def __getstate__(self) -> dict[str, Any]:
        names = ("store", "vocabulary", "window", "negatives", "subsample", "seed")
        return {**{name: getattr(self, name) for name in names}, "_kept": {}}  # each worker fills its own caches
