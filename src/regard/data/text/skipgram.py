"""Training examples of word2vec: subsampled words, their neighbours in windows of random width, and noise words."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import TensorBatch
from regard.data.loader import Place, Rows
from regard.data.text.token_blocks import TokenStore, split_rows

NOISE = 0.75  # noise words are drawn in proportion to their frequency to this power
THINNING, ORDER, DRAWS = range(3)  # uses of random numbers; each has its own stream


@dataclass(frozen=True)
class WindowBatch(TensorBatch):
    """B words of a text, up to C words around each of them, and K words drawn at random."""

    words: Int[Tensor, B]
    around: Int[Tensor, "B C"]
    mask: Bool[Tensor, "B C"]  # real neighbours
    noise: Int[Tensor, "B K"]

    @property
    def tokens(self) -> int:
        """Words."""
        return len(self.words)


@dataclass(frozen=True)
class WordWindows:
    """Makes batches of words with their neighbours in the same line, the same for the same (seed, epoch, index)."""

    store: TokenStore
    vocabulary: int
    window: int  # the most words on either side
    negatives: int
    subsample: float  # words with a greater share of the text than this are subsampled; 0 keeps all
    seed: int
    _kept: dict[int, Rows] = field(default_factory=dict, repr=False, compare=False)  # cache of the latest epoch

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
    def noise(self) -> NDArray[np.float64]:
        """The cumulative distribution of noise words."""
        weights = np.cumsum(self.counts**NOISE)
        return weights / weights[-1]

    @cached_property
    def lines(self) -> NDArray[np.int32]:
        """The line number of each token."""
        return np.repeat(np.arange(len(self.store.lines.offsets) - 1, dtype=np.int32), self.store.lines.lengths())

    def kept(self, epoch: int) -> Rows:
        """The positions of the words that subsampling keeps in an epoch. It is done before windows are formed."""
        if epoch not in self._kept:
            self._kept.clear()
            drawn = np.random.default_rng([self.seed, epoch, THINNING]).random(len(self.store.tokens))
            self._kept[epoch] = np.flatnonzero(drawn < self.keeping[self.store.tokens])
        return self._kept[epoch]

    def plan(self, epoch: int, size: int) -> list[Rows]:
        """The words of each batch of an epoch, as indices into `kept`, in random order."""
        order = np.random.default_rng([self.seed, epoch, ORDER]).permutation(len(self.kept(epoch)))
        return split_rows(order, size)

    def __call__(self, rows: Rows, place: Place) -> WindowBatch:
        rng, kept = np.random.default_rng([self.seed, *place, DRAWS]), self.kept(place[0])
        reach = rng.integers(1, self.window + 1, size=(len(rows), 1))
        offsets = np.concatenate([np.arange(-self.window, 0), np.arange(1, self.window + 1)])
        near = rows[:, None] + offsets
        places = kept[np.clip(near, 0, len(kept) - 1)]
        inside = (near >= 0) & (near < len(kept)) & (np.abs(offsets) <= reach)
        mask = inside & (self.lines[places] == self.lines[kept[rows]][:, None])
        noise = np.searchsorted(self.noise, rng.random((len(rows), self.negatives)), side="right")
        return WindowBatch(
            self._words(kept[rows]), self._words(places), torch.from_numpy(mask), torch.from_numpy(noise)
        )

    def _words(self, places: Rows) -> Tensor:
        return torch.from_numpy(self.store.tokens[places].astype(np.int64))

    def __getstate__(self) -> dict[str, Any]:
        names = ("store", "vocabulary", "window", "negatives", "subsample", "seed")
        return {**{name: getattr(self, name) for name in names}, "_kept": {}}  # each worker fills its own caches
