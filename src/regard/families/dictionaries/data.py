"""Activations of a model at one place as a stream of shuffled vectors.

The model reads a part of its examples at a time. The vectors of that part are shuffled and handed out in batches, and
only then the next part is read, so that no more than one part is ever in memory. A part depends only on the seed, the
epoch and its number: a run that resumes reads it again and continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batch import VectorBatch
from regard.data.example_store import ExampleStore
from regard.families.dictionaries.recipe import ReadSection
from regard.families.loading import load_pipeline
from regard.look.reader import (
    Example,
    Reader,
    Site,
    Source,
    is_built_in,
    no_examples,
    observe,
    read_examples,
    reader_of,
)
from regard.training.run_state import LoaderPlace
from regard.training.safeguards import Poll
from regard.training.stages import Stages

FEWEST = 2  # examples of a part
PROBED = 256  # examples that show the width of a place, and the vectors at which a dictionary begins


class Examples(Sequence[Example]):
    """Some of the examples of a store, read when they are asked for."""

    def __init__(self, store: ExampleStore, numbers: range) -> None:
        self.store, self.numbers = store, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Examples: ...
    def __getitem__(self, place: int | slice) -> Example | Examples:
        if isinstance(place, slice):
            return Examples(self.store, self.numbers[place])
        return self.store[self.numbers[place]]


def open_reader(data: ReadSection, device: str) -> Reader[Any]:
    """The reader of the model that a recipe names."""
    return reader_of(load_pipeline(data.model, device=device))


class ExamplePreparation:
    """Writes the examples that a model will read, and opens them."""

    def __init__(self, data: ReadSection, seed: int) -> None:
        self.data, self.seed = data, seed

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Read the data, cut them into examples and store these, unless they are there."""
        if folder.exists():
            return
        reader, stages = open_reader(self.data, "cpu"), Stages(folder)
        Site(reader.model, self.data.place)  # a wrong name is told before anything is read
        for source in self._sources():
            stages.once(source.part, partial(self._write, reader, source, poll))
        stages.gather()

    def open(self, folder: Path) -> tuple[Examples, Examples]:
        """The examples for training and for validation; the last ones, if no others are given."""
        train = ExampleStore.open(folder / "train")
        if (folder / "valid").is_dir():
            valid = ExampleStore.open(folder / "valid")
            return Examples(train, range(len(train))), Examples(valid, range(len(valid)))
        kept = len(train) - max(1, round(self.data.split * len(train)))
        return Examples(train, range(kept)), Examples(train, range(kept, len(train)))

    def _sources(self) -> Iterator[Source]:
        data = self.data
        source = Source(data.train, "train", data.count, data.block, data.documents, data.to, self.seed)
        yield source
        if data.valid or is_built_in(data.train):
            count = max(FEWEST, round(data.split * data.count))
            yield replace(source, path=data.valid or data.train, part="valid", count=count)

    def _write(self, reader: Reader[Any], source: Source, poll: Poll, place: Path) -> None:
        found = _polled(read_examples(reader, source), poll)
        ExampleStore.write(place / source.part, found, reader.columns)
        if len(ExampleStore.open(place / source.part)) < FEWEST:
            raise no_examples(source)


class ActivationStream:
    """Shuffled batches of the vectors that a model has at a place while it reads examples."""

    def __init__(
        self, reader: Reader[Any], site: Site, examples: Examples, *, batch: int, buffer: int, seed: int
    ) -> None:
        self.reader, self.site, self.examples, self.batch, self.seed = reader, site, examples, batch, seed
        self.probe = self.read(range(min(PROBED, len(examples))))
        per_example = len(self.probe) / min(PROBED, len(examples))
        self.at_once = max(1, round(buffer / per_example))  # examples of a part

    def onward(self, place: LoaderPlace) -> Iterator[tuple[LoaderPlace, VectorBatch]]:
        """Endless batches from a place on, each with the place after it."""
        epoch, part, used = (place.get(name, 0) for name in ("epoch", "part", "used"))
        while True:
            parts = self._parts(epoch)
            while part < len(parts):
                vectors = self._shuffled(parts[part], epoch, part)
                for number in range(used, max(1, len(vectors) // self.batch)):
                    after = {"epoch": epoch, "part": part, "used": number + 1}
                    yield after, VectorBatch(vectors[number * self.batch : (number + 1) * self.batch])
                part, used = part + 1, 0
            epoch, part = epoch + 1, 0

    def read(self, chosen: Sequence[int]) -> Float[Tensor, "N D"]:
        """The vectors of some examples, one example after another within a batch of them."""
        examples = [self.examples[each] for each in chosen]
        rows = [
            observe(self.reader, self.site, [examples[each] for each in batch]).rows
            for batch in self.reader.batches(examples)
        ]
        self.examples.store.let_go()
        return torch.cat(rows).clone()  # a tensor that autograd may use, not one of inference mode

    @cached_property
    def _whole(self) -> Float[Tensor, "N D"]:
        """The vectors of all examples, where these fit the buffer: every epoch has the same, and they are read once."""
        return self.read(range(len(self.examples)))

    def _parts(self, epoch: int) -> list[np.ndarray]:
        """Every example once, in random order and in parts that fit the buffer."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self.examples))
        return np.split(order, range(self.at_once, len(order), self.at_once))

    def _shuffled(self, chosen: np.ndarray, epoch: int, part: int) -> Float[Tensor, "N D"]:
        vectors = self._whole if len(chosen) == len(self.examples) else self.read(chosen.tolist())
        order = np.random.default_rng([self.seed, epoch, part]).permutation(len(vectors))
        return vectors[torch.from_numpy(order).to(vectors.device)]


def _polled(examples: Iterator[Example], poll: Poll) -> Iterator[Example]:
    for example in examples:
        poll()
        yield example
