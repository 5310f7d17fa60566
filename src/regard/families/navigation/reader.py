"""Reading instructions with paths through houses, by the loss of the path that succeeds among some that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.data.batch import pad_rows
from regard.data.sources import PARTS
from regard.errors import UsageError
from regard.families.navigation.data import PathBatch, store_routes
from regard.families.navigation.features import FEATURES, LOCATIONS, ROWS, Geometry
from regard.families.navigation.houses import House, Route, graphs_beside, read_houses, read_routes
from regard.families.navigation.pipeline import BUILT_IN, Navigator, find_house
from regard.families.navigation.synthetic import built_in_house, built_in_routes
from regard.families.navigation.vlnbert import score_candidates
from regard.look.reader import Example, Reader, Source, TokenUnits

PATHS = 4  # of an instruction: one that succeeds, and others
ROUTES = 5  # of a built-in house


class PathReader(Reader[PathBatch]):
    """A model that scores paths. Positions are the words of the instruction, or the steps of a path; both are there
    once for each path, since a path and the instruction are read together."""

    columns: ClassVar = {"ids": "<i4", "features": "<f4", "places": "<f4", "mask": "|u1"}
    reads_text: ClassVar = False
    built_in: ClassVar = (BUILT_IN,)

    def __init__(self, pipeline: Navigator) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer, self.longest = pipeline.tokenizer, pipeline.settings.longest

    def examples(self, source: Source) -> Iterator[Example]:
        """Every instruction with its first success and the first failures; others are left out."""
        return islice((each for house, route in self._routes(source) for each in self._of(house, route)), source.count)

    def given(self, text: str) -> Example:
        """A house, a viewpoint and an instruction, with the paths that the model likes best."""
        parts = text.split("|")
        if len(parts) != 3:
            raise UsageError(f"{text[:60]!r} says not where to go; write HOUSE|START|INSTRUCTION")
        house = find_house(parts[0])
        (found,) = self.pipeline.navigate(parts[2], house, parts[1])
        geometry = Geometry.of([house])
        best = geometry.padded(house.scan, [path.numbers for path in found.paths[:PATHS]])
        return self._row(parts[2], geometry, best, found.heading)

    def length(self, example: Example) -> int:
        return PATHS * max(len(example[0]), ROWS)

    def batch(self, examples: Sequence[Example]) -> PathBatch:
        ids, features, places, mask = zip(*examples, strict=True)
        words, words_mask = pad_rows(ids, self.tokenizer.pad)
        shape, count = (PATHS, ROWS), len(examples)
        return PathBatch(
            words, words_mask, torch.tensor(np.stack(features)).view(count, *shape, FEATURES),
            torch.tensor(np.stack(places)).view(count, *shape, LOCATIONS),
            torch.tensor(np.stack(mask)).view(count, *shape).bool(),
        ).to(self.device)  # fmt: skip

    def run(self, batch: PathBatch) -> object:
        return self._scores(batch)

    def loss(self, batch: PathBatch) -> tuple[float, int]:
        return float(-self._scores(batch).log_softmax(dim=-1)[:, 0].sum()), len(batch.words)

    def arranged(self, vectors: Float[Tensor, "N *T D"], place: str) -> Float[Tensor, "B C *T D"]:
        return vectors.unflatten(0, (-1, PATHS))

    def real(self, batch: PathBatch, place: str) -> Bool[Tensor, "B C T"]:
        there = batch.step_mask.any(dim=-1, keepdim=True)
        return batch.words_mask[:, None] & there if _of_words(place) else batch.step_mask

    def units(self, example: Example, place: str) -> TokenUnits:
        """The words, once for each path, or the number of a path and of its step; step 0 is the path as a whole."""
        mask = example[3].reshape(PATHS, ROWS).astype(bool)
        if _of_words(place):
            return TokenUnits(self.tokenizer.running(example[0].tolist()) * int(mask.any(axis=1).sum()))
        return TokenUnits([f" {path + 1}.{step}" for path, step in np.argwhere(mask).tolist()])

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The instruction and the path that is chosen; in examples, path 1 is the one that succeeds."""
        share, number = self._scores(self.batch([example]))[0].softmax(dim=-1).max(dim=0)
        return f"{self.tokenizer.decode(example[0].tolist())}: path {int(number) + 1} {float(share):.0%}"

    def _scores(self, batch: PathBatch) -> Float[Tensor, "B C"]:
        return score_candidates(
            self.model, batch.words, batch.words_mask, batch.features, batch.places, batch.step_mask
        )

    def _routes(self, source: Source) -> Iterator[tuple[House, Route]]:
        if source.path != BUILT_IN:
            houses = read_houses(graphs_beside(source.path))
            yield from ((houses[route.scan], route) for route in read_routes(source.path, houses))
            return
        for number in count(PARTS.index(source.part), len(PARTS)):
            house = built_in_house(source.seed, number)
            yield from ((house, route) for route in built_in_routes(house, source.seed, ROUTES))

    def _of(self, house: House, route: Route) -> Iterator[Example]:
        """The instructions of a route, if some paths succeed and some fail."""
        geometry = Geometry.of([house])
        store = store_routes([route], {house.scan: house}, geometry, self.pipeline.settings.candidates)
        good, bad = np.flatnonzero(store.succeeds[0]), np.flatnonzero(store.there[0] & ~store.succeeds[0])
        if len(good) and len(bad):
            chosen = store.candidates[0, [good[0], *bad[: PATHS - 1]]]
            yield from (self._row(text, geometry, chosen, route.heading) for text in route.instructions)

    def _row(self, text: str, geometry: Geometry, paths: np.ndarray, heading: float) -> Example:
        (encoded,) = self.tokenizer.encode([text], longest=self.longest)
        found = geometry.steps(paths, np.full(len(paths), heading))
        missing = [(0, PATHS - len(paths)), (0, 0)]
        features, places = (np.pad(each, [*missing, (0, 0)]) for each in (found.features, found.locations))
        kinds = zip((encoded.ids, features, places, np.pad(found.mask, missing)), self.columns.values(), strict=True)
        return tuple(np.asarray(each).astype(kind).ravel() for each, kind in kinds)


def _of_words(place: str) -> bool:
    """Whether the positions of a place are words: in their stream, and in what steps look at there."""
    looked_at = ".cross." in place and place.endswith((".keys", ".values"))
    return ("words" in place.split(".")) != looked_at
