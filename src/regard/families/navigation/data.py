"""Batches of instructions with paths: candidates to be ranked, or pairs in which words and steps are hidden."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from regard.config import Config, SavedConfig
from regard.data.batch import TensorBatch, pad_rows
from regard.families.navigation.features import (
    FEATURES,
    LOCATIONS,
    MIRRORED_FEATURES,
    MIRRORED_LOCATIONS,
    ROWS,
    CandidateConfig,
    Geometry,
    candidate_paths,
    is_shortest,
)
from regard.families.navigation.houses import LONGEST_PATH, House, NodePath, Route


class LengthPrior(Config):
    """The lengths of training paths: their share by number of viewpoints, and mean and deviation in metres."""

    viewpoints: dict[int, float]
    mean: float
    deviation: PositiveFloat


class PathSettings(SavedConfig):
    """Written beside the weights of a model of paths."""

    file_name: ClassVar[str] = "paths.json"

    longest: PositiveInt  # tokens of an instruction
    candidates: CandidateConfig
    trained: tuple[str, ...]  # houses
    validated: tuple[str, ...]
    tested: tuple[str, ...]
    prior: LengthPrior


SUCCESS = 3.0  # metres from the goal within which a path succeeds


@dataclass(frozen=True, eq=False)
class PathStore:
    """R routes with up to C candidates each, and their instructions; paths are padded with -1.

    `errors` is the way left from the end of a candidate to the goal, infinite where there is no candidate. `direct`
    candidates are the shortest path to their end. `shortest` is the way from the start to the goal.
    """

    paths: Int[np.ndarray, "R T"]
    headings: Float[np.ndarray, " R"]
    candidates: Int[np.ndarray, "R C T"]
    errors: Float[np.ndarray, "R C"]
    lengths: Float[np.ndarray, "R C"]
    direct: Bool[np.ndarray, "R C"]
    shortest: Float[np.ndarray, " R"]
    routes: Int[np.ndarray, " N"]  # the route of every instruction
    instructions: list[str]

    def __len__(self) -> int:
        return len(self.instructions)

    @property
    def succeeds(self) -> Bool[np.ndarray, "R C"]:
        """Which candidates end near the goal."""
        return self.errors < SUCCESS

    @property
    def there(self) -> Bool[np.ndarray, "R C"]:
        """Which candidates there are."""
        return self.candidates[..., 0] >= 0

    def save(self, folder: Path, name: str) -> None:
        arrays = {each: getattr(self, each) for each in _ARRAYS}
        np.savez(folder / f"{name}.npz", **arrays)
        (folder / f"{name}.json").write_text(json.dumps(self.instructions, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> PathStore:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {each: stored[each] for each in _ARRAYS}
        return cls(instructions=json.loads((folder / f"{name}.json").read_text(encoding="utf-8")), **arrays)


_ARRAYS = tuple(field.name for field in fields(PathStore) if field.name != "instructions")


def store_routes(
    routes: Sequence[Route],
    houses: Mapping[str, House],
    geometry: Geometry,
    config: CandidateConfig,
    poll: Callable[[], None] = lambda: None,
) -> PathStore:
    """The candidates of every route, measured against its goal."""
    made: dict[tuple[str, int], list[NodePath]] = {}
    count = config.count
    paths, numbers = np.full((len(routes), LONGEST_PATH), -1), []
    candidates = np.full((len(routes), count, LONGEST_PATH), -1)
    errors, lengths = (
        np.full((len(routes), count), np.inf, dtype=np.float32),
        np.zeros((len(routes), count), np.float32),
    )
    direct = np.zeros((len(routes), count), dtype=bool)
    for row, route in enumerate(routes):
        poll()
        house, start, goal = houses[route.scan], route.path[0], route.path[-1]
        if (route.scan, start) not in made:
            made[route.scan, start] = candidate_paths(house, start, config)
        found = made[route.scan, start]
        paths[row] = geometry.padded(route.scan, [route.path])[0]
        candidates[row, : len(found)] = geometry.padded(route.scan, found)
        errors[row, : len(found)] = [house.distances[path[-1], goal] for path in found]
        lengths[row, : len(found)] = [house.length(path) for path in found]
        direct[row, : len(found)] = [is_shortest(house, path) for path in found]
        numbers += [row] * len(route.instructions)
    shortest = [houses[route.scan].distances[route.path[0], route.path[-1]] for route in routes]
    return PathStore(
        paths, np.array([route.heading for route in routes]), candidates, errors, lengths, direct,
        np.array(shortest, dtype=np.float32), np.array(numbers, dtype=np.int64),
        [text for route in routes for text in route.instructions],
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

    def all_candidates(self, rows: NDArray[np.integer[Any]]) -> PathBatch:
        """Instructions with all their candidates in order."""
        count = self.store.candidates.shape[1]
        return self.chosen(rows, np.broadcast_to(np.arange(count), (len(rows), count)))

    def chosen(self, rows: NDArray[np.integer[Any]], candidates: Int[np.ndarray, "B C"]) -> PathBatch:
        """Instructions with some of their candidates, by number; -1 for none."""
        routes = self.store.routes[rows]
        paths = np.where(candidates[..., None] < 0, -1, self.store.candidates[routes[:, None], candidates])
        words, mask = self.words(rows)
        return PathBatch(words, mask, *self.steps(paths, self.store.headings[routes]))

    def words(self, rows: NDArray[np.integer[Any]]) -> tuple[Tensor, Tensor]:
        """The padded instructions and their mask."""
        return pad_rows([self.ids[row] for row in rows.tolist()], self.pad, self.longest)

    def steps(self, paths: Int[np.ndarray, "B C T"], headings: Float[np.ndarray, " B"]) -> tuple[Tensor, ...]:
        """Features, places and masks of candidates; all zero where there is none."""
        flat, shape = paths.reshape(-1, paths.shape[-1]), paths.shape[:2]
        there = flat[:, 0] >= 0
        features = np.zeros((len(flat), ROWS, FEATURES), dtype=np.float32)
        places, mask = np.zeros((len(flat), ROWS, LOCATIONS), dtype=np.float32), np.zeros((len(flat), ROWS), dtype=bool)
        if there.any():
            found = self.geometry.steps(flat[there], np.repeat(headings, shape[1])[there])
            features[there], places[there], mask[there] = found.features, found.locations, found.mask
        return tuple(torch.from_numpy(each).unflatten(0, shape) for each in (features, places, mask))


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
            good = store.succeeds[route]
            bad = np.flatnonzero(store.there[route] & ~good)
            line[0] = rng.choice(np.flatnonzero(good))
            chosen = rng.permutation(bad)[: self.failures]
            line[1 : 1 + len(chosen)] = chosen
        batch = self.rows.chosen(rows, drawn)
        if self.sides is None:
            return batch
        return mirrored(
            batch, np.random.default_rng([self.seed, *place, len(rows)]).random(len(rows)) < 0.5, self.sides
        )


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
            bad = np.flatnonzero(store.there[route] & ~store.succeeds[route])
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
