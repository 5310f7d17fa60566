"""Paths through houses with instructions: routes of a source, their candidate paths, and the corpus of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import PositiveFloat, PositiveInt

from regard.checkpoints import write_folder
from regard.config import Config, SavedConfig
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import train_vocabulary
from regard.errors import DataError
from regard.families.navigation.features import CandidateConfig, Geometry, candidate_paths, is_shortest
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
Houses = Mapping[str, House]  # by scan


def read_paths(path: str, graphs: str = "", skipped: list[str] | None = None) -> tuple[Houses, list[Route]]:
    """The houses and routes of a file of paths; bad routes are errors, or are named in `skipped`."""
    houses = read_houses(graphs or graphs_beside(path))
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
        """Which candidates there are."""
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
        """The corpus that `prepare` wrote."""
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


def prepare(recipe: PathRecipe, folder: Path, poll: Poll) -> None:
    """Read the paths of a recipe, make the candidates and learn the vocabulary, unless `folder` exists from before."""
    if not folder.exists():
        write_folder(folder, lambda temporary: _write(recipe, temporary, poll))


def _write(recipe: PathRecipe, folder: Path, poll: Poll) -> None:
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
