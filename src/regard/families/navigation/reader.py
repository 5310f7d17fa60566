"""Instructions with paths as a sparse autoencoder reads them, by the loss of the path that succeeds among others."""

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
from regard.families.navigation.data import (
    Houses,
    PathBatch,
    PathRows,
    RankingBatches,
    built_in_paths,
    read_paths,
    store_routes,
)
from regard.families.navigation.features import FEATURES, LOCATIONS, ROWS, Geometry
from regard.families.navigation.houses import Route
from regard.families.navigation.pipeline import Navigator, find_house
from regard.families.navigation.synthetic import HOUSES
from regard.families.navigation.task import ROUTES, candidate_scores, ranking_loss
from regard.look.reader import Example, Reader, Source, TokenUnits, is_looked_at

PATHS = 4  # of an instruction: one that succeeds, and others
AT_ONCE = 64  # routes of a file that are read together


class PathReader(Reader[PathBatch]):
    """A model that scores paths. Positions are the words of the instruction, or the steps of a path; both are there
    once for each path, since a path and the instruction are read together."""

    columns: ClassVar = {"ids": "<i4", "features": "<f4", "places": "<f4", "mask": "|u1"}
    reads_text: ClassVar = False
    built_in: ClassVar = (HOUSES,)

    def __init__(self, pipeline: Navigator) -> None:
        super().__init__(pipeline)
        self.tokenizer, self.longest = pipeline.tokenizer, pipeline.settings.longest

    def examples(self, source: Source) -> Iterator[Example]:
        """Instructions with a success and failures, drawn as in training; those that lack either are left out."""

        def every() -> Iterator[Example]:
            for houses, routes in _routes(source):
                geometry = Geometry.of(houses[scan] for scan in sorted({route.scan for route in routes}))
                store = store_routes(routes, houses, geometry, self.pipeline.settings.candidates)
                rows = PathRows.encoded(store, geometry, self.tokenizer, self.longest)
                if len(store.usable):
                    yield from _packed(RankingBatches(rows, PATHS - 1, source.seed)(store.usable, (0, 0)))

        return islice(every(), source.count)

    def given(self, text: str) -> Example:
        """A house, a viewpoint and an instruction, with the paths that the model likes best."""
        parts = text.split("|")
        if len(parts) != 3:
            raise UsageError(f"{text[:60]!r} does not say where to go; write HOUSE|START|INSTRUCTION")
        house = find_house(parts[0])
        (answer,) = self.pipeline.navigate(parts[2], house, parts[1])
        best = [path.numbers for path in answer.paths[:PATHS]]
        (row,) = self.tokenizer.encode([parts[2]], longest=self.longest)
        words = torch.tensor([row.ids])
        features, places, mask = (
            torch.cat([steps, steps.new_zeros(PATHS - len(best), *steps.shape[1:])])[None].cpu()
            for steps in self.pipeline.steps(house, best, answer.heading)
        )
        (example,) = _packed(PathBatch(words, torch.ones_like(words).bool(), features, places, mask))
        return example

    def length(self, example: Example) -> int:
        return PATHS * max(len(example[0]), ROWS)

    def batch(self, examples: Sequence[Example]) -> PathBatch:
        ids, features, places, mask = zip(*examples, strict=True)
        words, words_mask = pad_rows(ids, self.tokenizer.pad)
        shape = len(examples), PATHS, ROWS
        return PathBatch(
            words, words_mask, torch.tensor(np.stack(features)).view(*shape, FEATURES),
            torch.tensor(np.stack(places)).view(*shape, LOCATIONS), torch.tensor(np.stack(mask)).view(shape).bool(),
        ).to(self.device)  # fmt: skip

    def run(self, batch: PathBatch) -> object:
        return candidate_scores(self.model, batch)

    def loss(self, batch: PathBatch) -> tuple[float, int]:
        return float(ranking_loss(self.model, batch)), len(batch.words)

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
        share, number = candidate_scores(self.model, self.batch([example]))[0].softmax(dim=-1).max(dim=0)
        return f"{self.tokenizer.decode(example[0].tolist())}: path {int(number) + 1} {float(share):.0%}"


def _routes(source: Source) -> Iterator[tuple[Houses, list[Route]]]:
    """Some routes at a time, with their houses."""
    if source.path == HOUSES:
        for number in count(PARTS.index(source.part), len(PARTS)):
            yield built_in_paths(source.seed, [number], ROUTES)
    houses, routes = read_paths(source.path)
    for first in range(0, len(routes), AT_ONCE):
        yield houses, routes[first : first + AT_ONCE]


def _packed(batch: PathBatch) -> Iterator[Example]:
    """The examples of a batch."""
    for number, (words, mask) in enumerate(zip(batch.words.numpy(), batch.words_mask.numpy(), strict=True)):
        steps = (tensor[number].numpy() for tensor in (batch.features, batch.places, batch.step_mask))
        rows = zip((words[mask], *steps), PathReader.columns.values(), strict=True)
        yield tuple(row.astype(kind).ravel() for row, kind in rows)


def _of_words(place: str) -> bool:
    """Whether the positions of a place are words: in their stream, and in what steps look at there."""
    return ("words" in place.split(".")) != is_looked_at(place)
