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
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.batch import VectorBatch
from regard.data.columns import ExampleStore
from regard.errors import DataError, UsageError, with_article
from regard.families.dictionaries.recipe import ReadSection, is_built_in
from regard.families.loading import load_pipeline
from regard.look.reader import PREFIX, Example, Reader, Site, Source, observe, reader_of
from regard.training.run_state import LoaderPlace
from regard.training.safeguards import Poll, polled
from regard.training.stages import Stages

FEWEST = 2  # examples of a part
PROBED = 256  # examples that show the width of a place, and the vectors at which a dictionary begins


class Examples(Sequence[Example]):
    """Some of the examples of a store, read when they are asked for."""

    def __init__(self, store: ExampleStore, numbers: range) -> None:
        self.store, self.numbers = store, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: Any) -> Any:
        chosen = self.numbers[place]
        return Examples(self.store, chosen) if isinstance(chosen, range) else self.store[chosen]


def open_reader(data: ReadSection, device: str) -> Reader[Any]:
    """The reader of the model that a recipe names."""
    return reader_of(load_pipeline(data.model, device=device))


def read_examples(reader: Reader[Any], source: Source) -> Iterator[Example]:
    """The examples of some data. Built-in data, with or without prefix, are what the reader calls so; those of another
    kind of model are refused."""
    if is_built_in(source.path):
        plain = source.path.removeprefix(PREFIX)
        names = [name for name in reader.built_in if name.removeprefix(PREFIX) == plain]
        if not names:
            raise UsageError(
                f"{source.path!r} is nothing that {with_article(type(reader.model).__name__)} reads; give files, or "
                f"what is built in for it: {', '.join(reader.built_in) or 'none'}"
            )
        source = replace(source, path=names[0])
    return reader.examples(source)


def prepare_examples(data: ReadSection, seed: int, folder: Path, poll: Poll) -> None:
    """Write the examples that a model will read into a folder, unless they are there."""
    if folder.exists():
        return
    reader, stages = open_reader(data, "cpu"), Stages(folder)
    Site(reader.model, data.place)  # a wrong name is told before anything is read
    sources = [Source(data.train, "train", data.count, data.block, data.documents, data.to, seed)]
    if data.valid or is_built_in(data.train):
        count = max(FEWEST, round(data.split * data.count))
        sources.append(replace(sources[0], path=data.valid or data.train, part="valid", count=count))
    for source in sources:
        stages.once(source.part, partial(_write, reader, source, poll))
    stages.gather()


def _write(reader: Reader[Any], source: Source, poll: Poll, folder: Path) -> None:
    ExampleStore.write(folder / source.part, polled(read_examples(reader, source), poll), reader.columns)
    if len(ExampleStore.open(folder / source.part)) < FEWEST:
        raise DataError(
            f"{source.path}: there is nothing to read for the {source.part} part; give other data, or a larger block"
        )


def open_examples(data: ReadSection, folder: Path) -> tuple[Examples, Examples]:
    """The examples for training and for validation; the last ones of training, if no others were written."""
    train = ExampleStore.open(folder / "train")
    if (folder / "valid").is_dir():
        valid = ExampleStore.open(folder / "valid")
        return Examples(train, range(len(train))), Examples(valid, range(len(valid)))
    kept = len(train) - max(1, round(data.split * len(train)))
    return Examples(train, range(kept)), Examples(train, range(kept, len(train)))


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
        examples = [self.examples[number] for number in chosen]
        rows = [
            observe(self.reader, self.site, [examples[place] for place in batch]).rows
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
