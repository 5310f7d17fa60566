"""What tasks on images share: images decoded once per run, batches of them, and the task itself."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checkpoints import write_folder
from regard.data.batch import ImageBatch, ImageRowsBatch, TensorBatch
from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import ImageStore
from regard.data.images.reading import Preprocessing
from regard.data.loader import Loader, Place, Rows, in_batches, spread_evenly
from regard.data.sources import PARTS
from regard.errors import DataError
from regard.layers.vision import ImageConfig
from regard.training.initial_model import initial_folder, planned_config
from regard.training.recipe.sections import ModelSection
from regard.training.safeguards import Poll
from regard.training.task import Task, Values, loader_options

B = TypeVar("B", bound=TensorBatch)
P = TypeVar("P", bound="ImagePart")
RESIDENT = 8 << 30  # bytes of images that are kept on the device; larger sets stay on disk and the loader reads them
SKIPPED = "skipped.json"
CHUNK = 4096  # images read together
LEAST_DEVIATION = 1e-3  # of a channel that never changes


@dataclass(frozen=True)
class ImageRows:
    """Some of the images of a store."""

    store: ImageStore
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def resident(self) -> bool:
        """Whether they fit on the device."""
        return len(self) * self.store.pixels[:1].nbytes <= RESIDENT

    @property
    def images(self) -> ImageRows:
        """Themselves: parts with more than images name those among them so."""
        return self

    def taken(self, rows: NDArray[np.int64]) -> ImageRows:
        """Some of them."""
        return ImageRows(self.store, self.rows[rows])

    @classmethod
    def open(cls, folder: Path) -> ImageRows:
        """All images of a written store."""
        store = ImageStore.open(folder)
        return cls(store, np.arange(len(store)))

    def spread(self, count: int) -> ImageRows:
        """`count` of them, or all, evenly spread over the set."""
        return self.taken(spread_evenly(count, len(self)))

    def plan(self, batch: int, seed: int, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch: every image once, in batches whose sizes differ by one at most."""
        return in_batches(np.random.default_rng([seed, epoch]).permutation(len(self)), batch)

    def mean_and_deviation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of every channel, in 0..1."""
        sums = np.zeros((2, self.store.pixels.shape[1]))
        for some in in_batches(self.rows, CHUNK):
            values = self.store.pixels[some] / 255
            sums += values.mean(axis=(2, 3)).sum(axis=0), (values**2).mean(axis=(2, 3)).sum(axis=0)
        mean, square = sums / len(self)
        return mean.tolist(), np.sqrt(square - mean**2).clip(LEAST_DEVIATION).tolist()


class Drawing(Protocol):
    """An augmentation that draws the random numbers of a batch on the host."""

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of rows and random numbers; of pixels too unless they are on the device."""

    images: ImageRows
    augmentation: Drawing
    seed: int
    resident: bool

    def __call__(self, rows: Rows, place: Place) -> ImageBatch:
        draws = self.augmentation.draw(np.random.default_rng([self.seed, *place]), len(rows))
        pixels = None
        if not self.resident:
            pixels = torch.from_numpy(self.images.store.pixels[self.images.rows[rows]])
        return ImageBatch(torch.from_numpy(rows), torch.from_numpy(draws), pixels)


class DeviceImages:
    """Images on the device of the model: pixels, labels and masks by row."""

    def __init__(self, images: ImageRows, device: torch.device) -> None:
        store, self.images = images.store, images
        self.labels = torch.from_numpy(store.labels[images.rows]).to(device)
        self._pixels = torch.from_numpy(store.pixels[images.rows]).to(device) if images.resident else None
        self._masks = None if store.masks is None else torch.from_numpy(store.masks[images.rows]).to(device)

    def __len__(self) -> int:
        return len(self.images)

    def pixels(self, batch: ImageRowsBatch) -> UInt8[Tensor, "B C H W"]:
        """The images of a batch."""
        if self._pixels is None:
            assert batch.pixels is not None
            return batch.pixels
        return self._pixels[batch.rows]

    def masks(self, batch: ImageBatch) -> Int[Tensor, "B H W"]:
        """The class of every pixel."""
        assert self._masks is not None
        return self._masks[batch.rows].long()

    def in_order(self, count: int) -> Iterator[ImageBatch]:
        """All of them once, `count` at a time, without augmentation."""
        make = BatchMaker(self.images, Augmentation(), 0, self._pixels is not None)
        for rows in in_batches(np.arange(len(self)), count):
            yield make(rows, (0, 0)).to(self.labels.device)


class ImagePart(Protocol):
    """The images of a part, perhaps with more that belongs to them."""

    @property
    def images(self) -> ImageRows: ...
    def __len__(self) -> int: ...
    def taken(self, rows: NDArray[np.int64]) -> Self: ...


class ImageCorpus(ABC, Generic[P]):
    """The images that a model is trained, validated and tested on, decoded once per run to the size of the model.

    Without `given`, the preprocessing of the model that training starts from, every channel is normalised with its mean
    and standard deviation in the training images.
    """

    whole: ClassVar[bool] = False  # whether images are resized to a square as a whole; otherwise the middle is cut out
    train: P
    valid: P
    test: P
    preprocessing: Preprocessing
    skipped: list[str]  # what was left out

    def __init__(self, data: Any, size: int, channels: int, seed: int, given: Preprocessing | None = None) -> None:
        self.data, self.size, self.channels, self.seed, self.given = data, size, channels, seed, given
        side = (size, size)
        mean, deviation = (0.0,) * channels, (1.0,) * channels
        resize = side if self.whole else size
        self.resizing = given or Preprocessing(size=side, resize=resize, mean=mean, std=deviation)

    @abstractmethod
    def write(self, folder: Path, skipped: list[str], poll: Poll) -> None:
        """Write the three parts into folders of their names; what is left out is added to `skipped`."""

    @abstractmethod
    def part(self, folder: Path) -> P:
        """The part that was written into `folder`."""

    @property
    @abstractmethod
    def contents(self) -> str:
        """What the training images have, for the summary."""

    @property
    def details(self) -> str:
        """The end of the summary: nothing more, unless a family overrides this."""
        return ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes."""
        return self.train.images.store.names

    @property
    def summary(self) -> str:
        """The data in one line, for the log and the model card."""
        counts = [f"{len(part):,}" for part in (self.train, self.valid, self.test)]
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        text = f"{counts[0]} images {self.contents}; {counts[1]} for validation, {counts[2]} for testing"
        return text + self.details + left_out

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the images into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._prepare(temporary, poll))

    def open(self, folder: Path) -> Self:
        """Read what `prepare` wrote."""
        self.train, self.valid, self.test = self._parts(folder)
        self.preprocessing = Preprocessing.load(folder, self.size, self.channels)
        self.skipped = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return self

    def check(self, train: P) -> None:
        """Reject training images from which nothing can be learnt."""
        if not len(train):
            raise DataError(f"{self.data.train}: there is no image to learn from; give data.train some")

    def _prepare(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] = []
        self.write(folder, skipped, poll)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        train = self._parts(folder)[0]
        self.check(train)
        mean, deviation = train.images.mean_and_deviation()
        (self.given or self.resizing.replace(mean=tuple(mean), std=tuple(deviation))).save(folder)

    def _parts(self, folder: Path) -> tuple[P, P, P]:
        train, valid, test = (self.part(folder / part) for part in PARTS)
        if aside := self.data.split:
            if aside >= len(train):
                raise DataError(f"data.split sets {aside:,} images aside, but there are only {len(train):,}; lower it")
            held_out = train.images.store.held_out(aside)
            train, valid = train.taken(np.flatnonzero(~held_out)), train.taken(np.flatnonzero(held_out))
        if count := self.data.count:
            train = train.taken(np.sort(np.random.default_rng(self.seed).permutation(len(train))[:count]))
        return train, valid, test


class ImageTask(Task[B], Generic[B]):
    """Augmented images with what belongs to them; their preprocessing is saved beside the weights."""

    reads: ClassVar[type[ImageCorpus[Any]]]
    recipe: Any
    corpus: ImageCorpus[Any]
    train: DeviceImages

    @classmethod
    def images(cls, recipe: Any) -> ImageCorpus[Any]:
        """The images of a recipe, neither written nor read yet."""
        config = image_config(recipe.model)
        size, channels = config.image_size, config.channels
        given = initial_preprocessing(recipe.model.init, size, channels)
        return cls.reads(recipe.data, size, channels, recipe.seed, given)

    @classmethod
    def prepare(cls, recipe: Any, folder: Path, poll: Poll) -> None:
        """Decode the images to the size of the model."""
        cls.images(recipe).prepare(folder, poll)

    def __init__(self, recipe: Any, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = self.images(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError(
                "there is no image for validation; give data.valid, set some aside with data.split, "
                "or switch validation off with training.validate_every = 0"
            )
        self.train = self.placed(self.corpus.train)
        self.loader = Loader(self._plan, self.maker(), **loader_options(recipe.training, device))

    @cached_property
    def valid(self) -> Any:
        """The validation images on the device."""
        return self.placed(self.corpus.valid)

    def placed(self, part: Any) -> DeviceImages:
        """A part on the device."""
        return DeviceImages(part.images, self.device)

    def maker(self) -> Callable[[Rows, Place], B]:
        """What makes a batch of some training images."""
        images = self.corpus.train.images
        return BatchMaker(images, self.recipe.augmentation, self.recipe.seed, images.resident)  # type: ignore[return-value]

    def _plan(self, epoch: int) -> list[Rows]:
        return self.corpus.train.images.plan(self.recipe.training.batch, self.recipe.seed, epoch)

    def read(self, batch: ImageRowsBatch, images: DeviceImages) -> Float[Tensor, "B C H W"]:
        """Images as the model reads them, without augmentation."""
        return self.corpus.preprocessing.normalise(images.pixels(batch))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The metrics of the task on the validation images."""
        return self.measured(model, self.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test images; empty if the recipe has none."""
        part = self.corpus.test
        return self.measured(model, self.placed(part), poll) if len(part) else {}

    @abstractmethod
    def measured(self, model: nn.Module, images: Any, poll: Poll) -> Values:
        """The metrics of a model on some images."""

    def save(self, folder: Path) -> None:
        """Write the preprocessing beside the weights."""
        self.corpus.preprocessing.save(folder)


def initial_preprocessing(init: str, size: int, channels: int) -> Preprocessing | None:
    """The preprocessing of the model that training starts from; None if it starts from nothing."""
    return Preprocessing.load(initial_folder(init), size, channels) if init else None


def image_config(section: ModelSection) -> ImageConfig:
    """The configuration of the model to train: the recipe's, or that of the folder it starts from."""
    return planned_config(section, ImageConfig)
