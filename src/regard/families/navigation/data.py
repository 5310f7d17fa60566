"""Paths through houses with instructions: routes of a source, their candidate paths, the corpus of a run, and batches:
candidates to be ranked, or pairs in which words and steps are hidden."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from regard.config import Config, SavedConfig
from regard.data.batch import TensorBatch, pad_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError
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
from regard.families.navigation.houses import (
    LONGEST_PATH,
    House,
    NodePath,
    Route,
    graphs_beside,
    held_out,
    read_houses,
    read_routes,
    told_paths,
)
from regard.families.navigation.recipe import HousesSection, PathRecipe
from regard.families.navigation.synthetic import HOUSES, built_in_house, built_in_routes
from regard.training.initial_model import initial_tokenizer
from regard.training.safeguards import Poll

SUCCESS = 3.0  # metres from the goal within which a path succeeds
SHARE, KEPT = 0.15, 0.1  # of the steps that are to be predicted; of these, the share that is shown all the same
Houses = Mapping[str, House]  # by scan
Masker = Callable[[NDArray[np.int64], np.random.Generator], tuple[NDArray[np.int64], NDArray[np.bool_]]]


def read_paths(path: str, skipped: list[str] | None = None) -> tuple[Houses, list[Route]]:
    """The houses and routes of a file of paths; bad routes are errors, or are named in `skipped`."""
    houses = read_houses(graphs_beside(path))
    return houses, read_routes(path, houses, skipped)


def built_in_paths(seed: int, numbers: Iterable[int], count: int) -> tuple[Houses, list[Route]]:
    """Built-in houses by number, and `count` routes through each."""
    houses = [built_in_house(seed, number) for number in numbers]
    routes = [route for house in houses for route in built_in_routes(house, seed, count)]
    return {house.scan: house for house in houses}, routes


def instructions(path: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The scan and the instructions of every path of a file, without its house, or of the built-in houses."""
    if path != HOUSES:
        return told_paths(path)
    sizes = HousesSection()
    _, routes = built_in_paths(1, range(sizes.count), sizes.routes)
    return ((route.scan, route.instructions) for route in routes)


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
        return self.candidates[..., 0] >= 0

    @property
    def fails(self) -> Bool[np.ndarray, "R C"]:
        """Which candidates end elsewhere."""
        return self.there & ~self.succeeds

    @property
    def usable(self) -> Int[np.ndarray, " M"]:
        """The instructions with a candidate that succeeds and one that fails."""
        return np.flatnonzero(np.asarray(self.succeeds.any(axis=1) & self.fails.any(axis=1))[self.routes])

    def save(self, folder: Path, name: str) -> None:
        np.savez(folder / f"{name}.npz", **{array: getattr(self, array) for array in _ARRAYS})
        (folder / f"{name}.json").write_text(json.dumps(self.instructions, ensure_ascii=False), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path, name: str) -> PathStore:
        with np.load(folder / f"{name}.npz", allow_pickle=False) as stored:
            arrays = {array: stored[array] for array in _ARRAYS}
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
    made: dict[tuple[str, int], list[NodePath]] = {}  # by start
    shape = len(routes), config.count
    paths, candidates = np.full((len(routes), LONGEST_PATH), -1), np.full((*shape, LONGEST_PATH), -1)
    errors, lengths = np.full(shape, np.inf, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    direct, shortest = np.zeros(shape, dtype=bool), np.zeros(len(routes), dtype=np.float32)
    for row, route in enumerate(routes):
        poll()
        house, start, goal = houses[route.scan], route.path[0], route.path[-1]
        if (route.scan, start) not in made:
            made[route.scan, start] = candidate_paths(house, start, config)
        several = made[route.scan, start]
        paths[row], shortest[row] = geometry.padded(route.scan, [route.path])[0], house.distances[start, goal]
        candidates[row, : len(several)] = geometry.padded(route.scan, several)
        errors[row, : len(several)] = [house.distances[path[-1], goal] for path in several]
        lengths[row, : len(several)] = [house.length(path) for path in several]
        direct[row, : len(several)] = [is_shortest(house, path) for path in several]
    return PathStore(
        paths, np.array([route.heading for route in routes]), candidates, errors, lengths, direct, shortest,
        np.array([row for row, route in enumerate(routes) for _ in route.instructions], dtype=np.int64),
        [text for route in routes for text in route.instructions],
    )  # fmt: skip


def length_prior(store: PathStore) -> LengthPrior:
    """How long the true paths of a store are."""
    sizes = (store.paths >= 0).sum(axis=1)
    metres = store.shortest.astype(np.float64)
    shares = {size: float(share) for size, share in enumerate(np.bincount(sizes) / len(sizes)) if share}
    return LengthPrior(viewpoints=shares, mean=float(metres.mean()), deviation=float(max(metres.std(), 0.1)))


PathPart = Literal["train", "valid", "test", "seen"]
PATH_PARTS: tuple[PathPart, ...] = ("train", "valid", "test", "seen")
PURPOSES: dict[PathPart, str] = {
    "train": "train on", "valid": "validate on", "test": "test on", "seen": "validate on in houses trained on",
}  # fmt: skip
GEOMETRY, SKIPPED = "geometry.npz", "skipped.json"


@dataclass(frozen=True)
class PathCorpus:
    """The instructions and paths that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    geometry: Geometry
    stores: Mapping[PathPart, PathStore]
    settings: PathSettings
    skipped: list[str]

    @classmethod
    def open(cls, folder: Path) -> PathCorpus:
        """The corpus that `write_corpus` wrote."""
        return cls(
            TextTokenizer.load(folder / "tokenizer"),
            Geometry.load(folder / GEOMETRY),
            {part: PathStore.load(folder, part) for part in PATH_PARTS},
            PathSettings.load(folder),
            json.loads((folder / SKIPPED).read_text(encoding="utf-8")),
        )

    @property
    def summary(self) -> str:
        counts = {part: len(self.stores[part]) for part in PATH_PARTS}
        texts = ", ".join(f"{count:,} to {PURPOSES[part]}" for part, count in counts.items() if count)
        houses = f"{len(self.settings.trained)}, {len(self.settings.validated)} and {len(self.settings.tested)} houses"
        left_out = f"; {len(self.skipped):,} paths left out, the first: {self.skipped[0]}" if self.skipped else ""
        return f"instructions: {texts}; {houses} to train, validate and test on; no images{left_out}"


def write_corpus(recipe: PathRecipe, folder: Path, poll: Poll) -> None:
    """Read the paths of a recipe, make the candidates and learn the vocabulary."""
    data = recipe.data
    skipped: list[str] | None = [] if data.skip_bad else None
    houses, routes, seen = _read(recipe, skipped)
    scans, divided = _divided(recipe, routes, seen)
    geometry = Geometry.of(houses[scan] for scan in sorted({route.scan for route in [*routes, *seen]}))
    stores = {part: store_routes(divided[part], houses, geometry, data.candidates, poll) for part in PATH_PARTS}
    geometry.save(folder / GEOMETRY)
    for part, store in stores.items():
        store.save(folder, part)
    init, texts = recipe.model.init or recipe.words.init, stores["train"].instructions
    tokenizer = initial_tokenizer(init) if init else train_vocabulary(texts, recipe.tokenizer, "enclosed")
    tokenizer.save(folder / "tokenizer")
    (folder / SKIPPED).write_text(json.dumps(skipped or [], ensure_ascii=False), encoding="utf-8")
    PathSettings(
        longest=data.longest, candidates=data.candidates, trained=tuple(scans["train"]),
        validated=tuple(scans["valid"]), tested=tuple(scans["test"]), prior=length_prior(stores["train"]),
    ).save(folder)  # fmt: skip


def _read(recipe: PathRecipe, skipped: list[str] | None) -> tuple[Houses, list[Route], list[Route]]:
    """All houses, the routes to divide, and more routes in houses that are trained on."""
    data, sizes = recipe.data, recipe.data.houses
    if not data.built_in:
        houses = read_houses(data.graphs or graphs_beside(data.train))
        seen = read_routes(data.seen, houses, skipped) if data.seen else []
        return houses, read_routes(data.train, houses, skipped), seen
    routes, seen, drawn = list[Route](), list[Route](), dict[str, House]()
    for number in range(sizes.count):
        house, both = built_in_paths(recipe.seed, [number], sizes.routes + sizes.seen_routes)
        drawn |= house
        routes += both[: sizes.routes]
        seen += both[sizes.routes :]
    return drawn, routes, seen


def _divided(
    recipe: PathRecipe, routes: list[Route], seen: list[Route]
) -> tuple[dict[PathPart, list[str]], dict[PathPart, list[Route]]]:
    """The houses of each part and their routes."""
    data, scans = recipe.data, sorted({route.scan for route in routes})
    aside = held_out(scans, data.held_out + data.tested)
    if len(aside) == len(scans):
        raise DataError(
            f"{data.train} has paths in {len(scans)} houses, of which data.held_out = {data.held_out} and "
            f"data.tested = {data.tested} leave none to train on; lower them"
        )
    parts: dict[PathPart, list[str]] = {
        "train": [scan for scan in scans if scan not in aside],
        "valid": sorted(aside[: data.held_out]),
        "test": sorted(aside[data.held_out :]),
    }
    divided = {part: [route for route in routes if route.scan in parts[part]] for part in parts}
    return parts, {**divided, "seen": [route for route in seen if route.scan in parts["train"]]}


# Batches


@dataclass(frozen=True)
class PathBatch(TensorBatch):
    """B instructions with C candidate paths each. In training the first candidate succeeds and the others fail."""

    words: Int[Tensor, "B T"]
    words_mask: Bool[Tensor, "B T"]
    features: Float[Tensor, "B C R F"]
    places: Float[Tensor, "B C R P"]
    step_mask: Bool[Tensor, "B C R"]  # rows that there are; none where there is no candidate


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

    def __len__(self) -> int:
        return len(self.store)

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
