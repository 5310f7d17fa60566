"""Batches of few shapes: sentences are padded to one of a few lengths, and every length has its number of rows.

A GPU compiles and captures a step for each shape. Batches as long as their longest sentence have hundreds of shapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from regard.data.loader import Rows

NOBODY = -1  # in place of the number of a pair: a row of padding
STEP = 4  # lengths are multiples of this many tokens, and numbers of rows of twice as many: GPUs multiply such faster


@dataclass(frozen=True)
class Buckets:
    """Some lengths, ascending, and the number of rows of a batch of each."""

    lengths: tuple[int, ...]
    rows: tuple[int, ...]

    @classmethod
    def of(cls, sizes: Rows, count: int, batch_tokens: int) -> Self:
        """The `count` lengths with the least padding, for pairs whose longer side has these many tokens."""
        lengths = best_lengths(-(-sizes // STEP) * STEP, count)
        rows = {_rows(batch_tokens, length): length for length in lengths}  # of the same rows, the longest
        return cls(tuple(rows.values()), tuple(rows))

    def length(self, rows: int) -> int:
        """The length of a batch with this many rows."""
        return self.lengths[self.rows.index(rows)]

    def plan(self, sizes: Rows, *, seed: int, epoch: int) -> list[Rows]:
        """The rows of each batch of an epoch: every pair once, in an order that (seed, epoch) decides.

        Pairs that do not fill a batch of their length join those of the next one, so only one batch has padded rows.
        """
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(sizes))
        bucket = np.searchsorted(self.lengths, sizes[order])
        batches: list[Rows] = []
        left = order[:0]
        for number, rows in enumerate(self.rows):
            waiting = np.concatenate([left, order[bucket == number]])
            full = len(waiting) - len(waiting) % rows
            batches += np.split(waiting[:full], range(rows, full, rows)) if full else []
            left = waiting[full:]
        if len(left):
            batches.append(np.concatenate([left, np.full(self.rows[-1] - len(left), NOBODY)]))
        return [batches[i] for i in rng.permutation(len(batches))]


def _rows(batch_tokens: int, length: int) -> int:
    rows = batch_tokens // length
    return max(1, rows - rows % (2 * STEP) if rows > 2 * STEP else rows)


def best_lengths(sizes: Rows, count: int) -> list[int]:
    """At most `count` of the sizes, the largest included, such that rounding up to them adds the fewest tokens."""
    values, counts = np.unique(sizes, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])  # pairs with a smaller size than each
    costs = np.concatenate([[0.0], np.full(len(values), np.inf)])  # padded tokens of the smallest sizes
    choices = []
    for _ in range(min(count, len(values))):
        # cost[end] = min over begin of costs[begin] + (pairs from begin to end) x the length of end
        added = (below[None, 1:] - below[:-1, None]) * values[None, :]
        totals = np.where(np.tri(len(values)).T > 0, costs[:-1, None] + added, np.inf)
        choices.append(totals.argmin(axis=0))
        costs = np.concatenate([[0.0], totals.min(axis=0)])
    chosen: list[int] = []
    end = len(values)
    for choice in reversed(choices):
        if end:
            chosen.append(int(values[end - 1]))
            end = int(choice[end - 1])
    return chosen[::-1]
