"""From the files of a recipe to routes with candidate paths, encoded instructions and the houses held out, once per
run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from regard.checkpoints import write_folder
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import VocabularyConfig, train_vocabulary
from regard.errors import DataError
from regard.families.navigation.data import SUCCESS, LengthPrior, PathRows, PathSettings, PathStore, store_routes
from regard.families.navigation.features import Geometry
from regard.families.navigation.houses import House, Route, graphs_beside, held_out, read_houses, read_routes
from regard.families.navigation.recipe import PathsSection
from regard.families.navigation.synthetic import built_in_houses, built_in_routes
from regard.training.initial_model import initial_tokenizer
from regard.training.safeguards import Poll

Chosen = Float[np.ndarray, "N C"]  # for every instruction, the probability with which each candidate is taken


def expected_scores(store: PathStore, chosen: Chosen) -> dict[str, float]:
    """Success (the path ends within 3 m of the goal), the mean way left, and success weighted by path length (SPL).

    Where several candidates may be taken, these are expected values.
    """
    rows = store.routes
    errors, lengths, shortest = store.errors[rows], store.lengths[rows], store.shortest[rows, None]
    success = errors < SUCCESS
    efficiency = shortest / np.maximum(np.maximum(lengths, shortest), 1e-6)
    left = np.where(store.there[rows], errors, 0.0)
    return {
        "success": float((chosen * success).sum(axis=1).mean()),
        "error": float((chosen * left).sum(axis=1).mean()),
        "spl": float((chosen * success * efficiency).sum(axis=1).mean()),
    }


def one_hot(best: Int[np.ndarray, " N"], count: int) -> Chosen:
    """The choice of one candidate for each instruction."""
    return np.eye(count)[best]


def baselines(store: PathStore, prior: LengthPrior) -> dict[str, dict[str, float]]:
    """What choosing without reading achieves, and the best that these candidates allow."""
    there, rows = store.there, store.routes
    direct = np.where(store.direct.any(axis=1, keepdims=True), store.direct, there)
    likely = np.where(there, prior_scores(store, prior), -np.inf).argmax(axis=1)
    closest = np.where(there, store.errors, np.inf).argmin(axis=1)
    count = there.shape[1]
    choices = {
        "random": _uniform(there)[rows],
        "shortest to each end": _uniform(direct)[rows],
        "length prior": one_hot(likely[rows], count),
        "best candidate": one_hot(closest[rows], count),
    }
    return {name: expected_scores(store, chosen) for name, chosen in choices.items()}


def _uniform(among: np.ndarray) -> np.ndarray:
    return among / among.sum(axis=1, keepdims=True)


def length_prior(store: PathStore) -> LengthPrior:
    """How long the true paths of a store are."""
    sizes = (store.paths >= 0).sum(axis=1)
    counts = np.bincount(sizes) / len(sizes)
    metres = store.shortest.astype(np.float64)
    shares: Mapping[int, float] = {size: float(share) for size, share in enumerate(counts) if share}
    return LengthPrior(viewpoints=dict(shares), mean=float(metres.mean()), deviation=float(max(metres.std(), 0.1)))


def prior_scores(store: PathStore, prior: LengthPrior) -> Float[np.ndarray, "R C"]:
    """The log-probability of each candidate's number of viewpoints and, as a normal variable, of its length."""
    sizes = (store.candidates >= 0).sum(axis=-1)
    table = np.full(max(sizes.max(), *prior.viewpoints) + 1, math.log(1e-6))
    for size, share in prior.viewpoints.items():
        table[size] = math.log(share)
    scores: np.ndarray = table[sizes] - 0.5 * ((store.lengths - prior.mean) / prior.deviation) ** 2
    return scores


PathPart = Literal["train", "valid", "test", "seen"]
PATH_PARTS: tuple[PathPart, ...] = ("train", "valid", "test", "seen")
GEOMETRY, SKIPPED = "geometry.npz", "skipped.json"


@dataclass(frozen=True)
class PathCorpus:
    """The instructions and paths that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    geometry: Geometry
    stores: Mapping[PathPart, PathStore]
    settings: PathSettings
    skipped: list[str]

    def rows(self, part: PathPart) -> tuple[PathRows, int]:
        """The encoded instructions of a part, and how many of them were cut."""
        store, longest = self.stores[part], self.settings.longest
        whole = [each.ids for each in self.tokenizer.encode(store.instructions)]
        long = [number for number, ids in enumerate(whole) if len(ids) > longest]
        cut = self.tokenizer.encode([store.instructions[number] for number in long], longest=longest)
        for number, each in zip(long, cut, strict=True):
            whole[number] = each.ids
        return PathRows(store, self.geometry, whole, self.tokenizer.pad, longest), len(long)

    @property
    def summary(self) -> str:
        told = ", ".join(f"{len(self.stores[part]):,} to {name}" for part, name in _NAMED if len(self.stores[part]))
        houses = f"{len(self.settings.trained)}, {len(self.settings.validated)} and {len(self.settings.tested)} houses"
        left_out = f"; {len(self.skipped):,} paths left out, the first: {self.skipped[0]}" if self.skipped else ""
        return f"instructions: {told}; {houses} to train, validate and test on; no images{left_out}"


_NAMED: tuple[tuple[PathPart, str], ...] = (
    ("train", "train on"), ("valid", "validate on"), ("test", "test on"), ("seen", "validate on in houses trained on")
)  # fmt: skip


@dataclass(frozen=True)
class PathPreparation:
    """How the files of a recipe become a corpus; `init` is a model folder whose tokenizer is used, if any."""

    data: PathsSection
    vocabulary: VocabularyConfig
    init: str
    seed: int

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> PathCorpus:
        """The corpus that was written into `folder`."""
        return PathCorpus(
            TextTokenizer.load(folder / "tokenizer"),
            Geometry.load(folder / GEOMETRY),
            {part: PathStore.load(folder, part) for part in PATH_PARTS},
            PathSettings.load(folder),
            json.loads((folder / SKIPPED).read_text(encoding="utf-8")),
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] | None = [] if self.data.skip_bad else None
        houses, routes, seen = self._read(skipped)
        parts, divided = self._divided(routes, seen)
        geometry = Geometry.of(houses[scan] for scan in sorted({route.scan for route in [*routes, *seen]}))
        stores = {
            part: store_routes(divided[part], houses, geometry, self.data.candidates, poll) for part in PATH_PARTS
        }
        geometry.save(folder / GEOMETRY)
        for part, store in stores.items():
            store.save(folder, part)
        self._tokenizer(stores["train"].instructions).save(folder / "tokenizer")
        (folder / SKIPPED).write_text(json.dumps(skipped or [], ensure_ascii=False), encoding="utf-8")
        PathSettings(
            longest=self.data.longest, candidates=self.data.candidates, trained=tuple(parts["train"]),
            validated=tuple(parts["valid"]), tested=tuple(parts["test"]), prior=length_prior(stores["train"]),
        ).save(folder)  # fmt: skip

    def _read(self, skipped: list[str] | None) -> tuple[dict[str, House], list[Route], list[Route]]:
        """All houses, the routes to divide, and more routes in houses that are trained on."""
        data = self.data
        if not data.built_in:
            houses = read_houses(data.graphs or graphs_beside(data.train))
            seen = read_routes(data.seen, houses, skipped) if data.seen else []
            return houses, read_routes(data.train, houses, skipped), seen
        drawn = {house.scan: house for house in built_in_houses(self.seed, data.houses.count)}
        count, more = data.houses.routes, data.houses.seen_routes
        each = {scan: list(built_in_routes(house, self.seed, count + more)) for scan, house in drawn.items()}
        routes = [route for found in each.values() for route in found[:count]]
        return drawn, routes, [route for found in each.values() for route in found[count:]]

    def _divided(
        self, routes: list[Route], seen: list[Route]
    ) -> tuple[dict[PathPart, list[str]], dict[PathPart, list[Route]]]:
        """The houses of each part and their routes."""
        scans = sorted({route.scan for route in routes})
        data, aside = self.data, held_out(scans, self.data.held_out + self.data.tested)
        if len(aside) == len(scans):
            raise DataError(
                f"{data.train} has paths in {len(scans)} houses, of which data.held_out = {data.held_out} and "
                f"data.tested = {data.tested} leave none to train on; lower them"
            )
        valid, test = sorted(aside[: data.held_out]), sorted(aside[data.held_out :])
        parts: dict[PathPart, list[str]] = {
            "train": [scan for scan in scans if scan not in aside], "valid": valid, "test": test, "seen": [],
        }  # fmt: skip
        divided = {part: [route for route in routes if route.scan in parts[part]] for part in PATH_PARTS}
        return parts, divided | {"seen": [route for route in seen if route.scan in parts["train"]]}

    def _tokenizer(self, texts: list[str]) -> TextTokenizer:
        return initial_tokenizer(self.init) if self.init else train_vocabulary(texts, self.vocabulary, "enclosed")
