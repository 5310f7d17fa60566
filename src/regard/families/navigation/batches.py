"""Batches of instructions with paths: candidates to be ranked, or pairs in which words and steps are hidden."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from regard.data.batch import TensorBatch, pad_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.families.navigation.data import PathStore
from regard.families.navigation.features import (
    FEATURES,
    LOCATIONS,
    MIRRORED_FEATURES,
    MIRRORED_LOCATIONS,
    ROWS,
    Geometry,
)  # fmt: skip

Masker = Callable[[NDArray[np.int64], np.random.Generator], tuple[NDArray[np.int64], NDArray[np.bool_]]]
SHARE, KEPT = 0.15, 0.1  # of the steps that are to be predicted; of these, the share that is shown all the same


@dataclass(frozen=True)
class PathBatch(TensorBatch):
    """B instructions with C candidate paths each. In training the first candidate succeeds and the others fail."""

    words: Int[Tensor, "B T"]
    words_mask: Bool[Tensor, "B T"]
    features: Float[Tensor, "B C R F"]
    places: Float[Tensor, "B C R P"]
    step_mask: Bool[Tensor, "B C R"]  # rows that there are; none where there is no candidate

    @property
    def tokens(self) -> int:
        """Instructions."""
        return len(self.words)


@dataclass(frozen=True)
class HiddenBatch(TensorBatch):
    """B instructions with one path each; some words and steps are hidden, and some paths belong to other texts."""

    words: Int[Tensor, "B T"]
    words_mask: Bool[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    labels_mask: Bool[Tensor, "B T"]
    features: Float[Tensor, "B R F"]
    places: Float[Tensor, "B R P"]
    step_mask: Bool[Tensor, "B R"]
    targets: Float[Tensor, "B R F"]  # the features without anything hidden
    hidden: Bool[Tensor, "B R"]  # steps to be predicted
    mismatched: Int[Tensor, B]  # 1 where the path is another one

    @property
    def tokens(self) -> int:
        """Hidden words; 1 if there is none, so that a mean over them is a number."""
        return max(1, int(self.labels_mask.sum()))


@dataclass(frozen=True, eq=False)
class PathRows:
    """Encoded instructions and their paths, from which batches are made; `longest` is the length of padded texts."""

    store: PathStore
    geometry: Geometry
    ids: list[list[int]]
    pad: int
    longest: int
    cut: int = 0  # instructions that were longer

    @classmethod
    def encoded(cls, store: PathStore, geometry: Geometry, tokenizer: TextTokenizer, longest: int) -> PathRows:
        """The rows of a store, whose instructions are cut to `longest` tokens."""
        ids = [row.ids for row in tokenizer.encode(store.instructions)]
        long = [number for number, row in enumerate(ids) if len(row) > longest]
        cut = tokenizer.encode([store.instructions[number] for number in long], longest=longest)
        for number, row in zip(long, cut, strict=True):
            ids[number] = row.ids
        return cls(store, geometry, ids, tokenizer.pad, longest, len(long))

    def all_candidates(self, rows: NDArray[np.integer[Any]]) -> PathBatch:
        """Instructions with all their candidates in order."""
        count = self.store.candidates.shape[1]
        return self.chosen(rows, np.broadcast_to(np.arange(count), (len(rows), count)))

    def chosen(self, rows: NDArray[np.integer[Any]], candidates: Int[np.ndarray, "B C"]) -> PathBatch:
        """Instructions with some of their candidates, by number; -1 for none."""
        routes = self.store.routes[rows]
        paths = np.where(candidates[..., None] < 0, -1, self.store.candidates[routes[:, None], candidates])
        words, mask = pad_rows([self.ids[row] for row in rows.tolist()], self.pad, self.longest)
        return PathBatch(words, mask, *self.steps(paths, self.store.headings[routes]))

    def steps(self, paths: Int[np.ndarray, "B C T"], headings: Float[np.ndarray, " B"]) -> tuple[Tensor, ...]:
        """Features, places and masks of candidates; all zero where there is none."""
        flat, shape = paths.reshape(-1, paths.shape[-1]), paths.shape[:2]
        there = flat[:, 0] >= 0
        features = np.zeros((len(flat), ROWS, FEATURES), dtype=np.float32)
        places, mask = np.zeros((len(flat), ROWS, LOCATIONS), dtype=np.float32), np.zeros((len(flat), ROWS), dtype=bool)
        if there.any():
            steps = self.geometry.steps(flat[there], np.repeat(headings, shape[1])[there])
            features[there], places[there], mask[there] = steps
        return tuple(torch.from_numpy(array).unflatten(0, shape) for array in (features, places, mask))


@dataclass(frozen=True, eq=False)
class RankingBatches:
    """Makes training batches: of each instruction's candidates one success and some failures, drawn anew each epoch.

    With `sides`, the tokens of "left" and "right", half of the examples are mirrored: these words are exchanged, and
    the house is seen in a mirror.
    """

    rows: PathRows
    failures: int
    seed: int
    sides: tuple[int, int] | None = None

    def __call__(self, rows: NDArray[np.integer[Any]], place: tuple[int, int]) -> PathBatch:
        store = self.rows.store
        drawn = np.full((len(rows), 1 + self.failures), -1)
        for line, row in zip(drawn, rows.tolist(), strict=True):
            rng, route = np.random.default_rng([self.seed, place[0], row]), store.routes[row]
            line[0] = rng.choice(np.flatnonzero(store.succeeds[route]))
            chosen = rng.permutation(np.flatnonzero(store.fails[route]))[: self.failures]
            line[1 : 1 + len(chosen)] = chosen
        batch = self.rows.chosen(rows, drawn)
        if self.sides is None:
            return batch
        rng = np.random.default_rng([self.seed, *place, len(rows)])
        return mirrored(batch, rng.random(len(rows)) < 0.5, self.sides)


def mirrored(batch: PathBatch, chosen: Bool[np.ndarray, " B"], sides: tuple[int, int]) -> PathBatch:
    """A batch in which the chosen examples are mirrored."""
    rows = torch.from_numpy(chosen)
    words, features, places = batch.words.clone(), batch.features.clone(), batch.places.clone()
    left, right = (batch.words == side for side in sides)
    words[rows[:, None] & left], words[rows[:, None] & right] = sides[1], sides[0]
    for numbers, (order, signs) in ((features, MIRRORED_FEATURES), (places, MIRRORED_LOCATIONS)):
        numbers[rows] = numbers[rows][..., torch.from_numpy(order)] * torch.from_numpy(signs)
    return replace(batch, words=words, features=features, places=places)


@dataclass(frozen=True, eq=False)
class HiddenBatches:
    """Makes batches of pairs in which words and steps are hidden.

    Row 0 is hidden as well: it sums up the path, so it would reveal a hidden step. Nothing is predicted of a pair whose
    path was exchanged for one that fails, except that they do not match.
    """

    rows: PathRows
    masker: Masker
    mismatched: float
    seed: int

    def __call__(self, rows: NDArray[np.integer[Any]], place: tuple[int, int]) -> HiddenBatch:
        store, routes = self.rows.store, self.rows.store.routes[rows]
        paths, other = store.paths[routes].copy(), np.zeros(len(rows), dtype=np.int64)
        ids, labels, guessed = [], [], []
        draws = [np.random.default_rng([self.seed, place[0], row]) for row in rows.tolist()]
        for number, (row, route, rng) in enumerate(zip(rows.tolist(), routes.tolist(), draws, strict=True)):
            bad = np.flatnonzero(store.fails[route])
            if len(bad) and rng.random() < self.mismatched:
                paths[number], other[number] = store.candidates[route, rng.choice(bad)], 1
            true = np.array(self.rows.ids[row], dtype=np.int64)
            shown, chosen = self.masker(true, rng) if not other[number] else (true, np.zeros(len(true), dtype=bool))
            ids.append(shown)
            labels.append(true)
            guessed.append(chosen.astype(np.int64))
        pad, longest = self.rows.pad, self.rows.longest
        words, mask = pad_rows(ids, pad, longest)
        features, places, step_mask = (each[:, 0] for each in self.rows.steps(paths[:, None], store.headings[routes]))
        hidden = self._hidden(step_mask.numpy(), other, draws)
        kept = torch.from_numpy(np.array([rng.random(step_mask.shape[1]) < KEPT for rng in draws]))
        shown_steps = ~(hidden & ~kept)
        shown_steps[:, 0] = False
        return HiddenBatch(
            words, mask, pad_rows(labels, pad, longest)[0], pad_rows(guessed, 0, longest)[0].bool(),
            features * shown_steps[..., None], places * shown_steps[..., None], step_mask, features, hidden,
            torch.from_numpy(other),
        )  # fmt: skip

    @staticmethod
    def _hidden(there: np.ndarray, other: np.ndarray, draws: list[np.random.Generator]) -> Tensor:
        """Which steps are to be predicted: a share of each true path, and one at least."""
        hidden = np.zeros_like(there)
        for row, exchanged, rng in zip(range(len(there)), other, draws, strict=True):
            steps = np.flatnonzero(there[row])[1:]
            count = 0 if exchanged else max(1, round(SHARE * len(steps)))
            hidden[row, rng.permutation(steps)[:count]] = True
        return torch.from_numpy(hidden)
