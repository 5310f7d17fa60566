"""What tasks on images share."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.checkpoints import write_folder
from regard.checkpoints.models import identify
from regard.data.batch import ImageBatch, ImageRowsBatch
from regard.data.images.augmentation import Augmentation
from regard.data.images.datasets import Example, Files, ImageStore, open_images
from regard.data.images.reading import Preprocessing
from regard.data.loader import Loader, Place, Rows
from regard.data.sources import PARTS, Part
from regard.data.synthetic.shapes import SHAPE_NAMES, scenes
from regard.errors import DataError
from regard.layers.vision import ImageConfig
from regard.training.initial_model import initial_folder
from regard.training.recipe.data_sections import ImagesSection
from regard.training.recipe.sections import ExampleTrainingSection, ModelSection
from regard.training.safeguards import Poll
from regard.training.task import SupervisedTask, Values, loader_options

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

    def spread(self, count: int) -> ImageRows:
        """`count` of them, or all, evenly spread over the set: its classes may follow one another."""
        chosen = np.linspace(0, len(self), min(count, len(self)), endpoint=False).astype(np.int64)
        return ImageRows(self.store, self.rows[chosen])

    def plan(self, batch: int, seed: int, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch: every image once, in batches whose sizes differ by one at most."""
        order = np.random.default_rng([seed, epoch]).permutation(len(self))
        return np.array_split(order, -(-len(order) // batch))

    def mean_and_deviation(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of every channel, in 0..1."""
        sums = np.zeros((2, self.store.pixels.shape[1]))
        for some in np.array_split(self.rows, -(-len(self) // CHUNK)):
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
        for rows in np.array_split(np.arange(len(self)), -(-len(self) // count)):
            yield make(rows, (0, 0)).to(self.labels.device)


@dataclass(frozen=True)
class ImageCorpus:
    """The images that a model is trained, validated and tested on."""

    train: ImageRows
    valid: ImageRows
    test: ImageRows
    preprocessing: Preprocessing
    skipped: list[str]

    @property
    def names(self) -> tuple[str, ...]:
        return self.train.store.names

    @property
    def summary(self) -> str:
        counts = [f"{len(part):,}" for part in (self.train, self.valid, self.test)]
        text = f"{counts[0]} images of {len(self.names)} classes; {counts[1]} for validation, {counts[2]} for testing"
        left_out = f"; {len(self.skipped):,} left out, the first: {self.skipped[0]}" if self.skipped else ""
        return text + left_out

    def batches(
        self, augmentation: Augmentation, size: int, seed: int
    ) -> tuple[Callable[[int], list[Rows]], BatchMaker]:
        """The plan of an epoch in batches of `size` training images, and what makes a batch of its rows."""

        def plan(epoch: int) -> list[Rows]:
            return self.train.plan(size, seed, epoch)

        return plan, BatchMaker(self.train, augmentation, seed, self.train.resident)


@dataclass(frozen=True)
class ImagePreparation:
    """How the files of a recipe become a corpus of images of one size.

    Without `preprocessing`, the shorter side is resized to `size`, the middle is cut out, and every channel is
    normalised with its mean and standard deviation in the training images.
    """

    data: ImagesSection
    size: int
    channels: int
    seed: int
    preprocessing: Preprocessing | None = None

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            write_folder(folder, lambda temporary: self._write(temporary, poll))

    def open(self, folder: Path) -> ImageCorpus:
        """The corpus that was written into `folder`."""
        parts = self._parts(folder)
        skipped: list[str] = json.loads((folder / SKIPPED).read_text(encoding="utf-8"))
        return ImageCorpus(*parts, Preprocessing.load(folder, self.size, self.channels), skipped)

    def _write(self, folder: Path, poll: Poll) -> None:
        skipped: list[str] = []
        names: Sequence[str] = SHAPE_NAMES if self.data.built_in else self.data.labels
        for part in PARTS:
            if self.data.built_in:
                ImageStore.write(folder / part, self._built_in(part, poll), names)
                continue
            files = [open_images(path, names) for path in self.data.paths(part)]
            names = self._agreed(files) or names
            by_class = any(each.by_class for each in files)
            ImageStore.write(folder / part, self._decoded(files, skipped, poll), names, by_class=by_class)
        (folder / SKIPPED).write_text(json.dumps(skipped, ensure_ascii=False), encoding="utf-8")
        train = self._parts(folder)[0]
        if not len(train):
            raise DataError(f"{self.data.train}: there is no image to learn from; give data.train some")
        mean, deviation = train.mean_and_deviation()
        self._preprocessing(mean, deviation).save(folder)

    def _agreed(self, files: Sequence[Files]) -> tuple[str, ...]:
        if len({each.labels for each in files}) > 1:
            raise DataError(f"{self.data.train}: the files have different classes; name them all with data.labels")
        return files[0].labels if files else ()

    def _preprocessing(self, mean: list[float], deviation: list[float]) -> Preprocessing:
        if self.preprocessing is not None:
            return self.preprocessing
        return Preprocessing(size=(self.size, self.size), resize=self.size, mean=tuple(mean), std=tuple(deviation))

    def _decoded(self, files: Sequence[Files], skipped: list[str], poll: Poll) -> Iterator[Example]:
        preprocessing = self._preprocessing([0.0] * self.channels, [1.0] * self.channels)
        for each in files:
            for found in each.examples:
                poll()
                if isinstance(found, str):
                    skipped.append(found)
                    continue
                image, label = found
                yield Example(preprocessing.pixels(image), label)

    def _built_in(self, part: Part, poll: Poll) -> Iterator[Example]:
        for scene in scenes(part=part, count=self.data.scenes.of(part), seed=self.seed, size=self.size):
            poll()
            pixels = scene.pixels
            if self.channels == 1:
                pixels = pixels.mean(axis=0, keepdims=True).round().astype(np.uint8)
            yield Example(pixels, scene.label, scene.mask)

    def _parts(self, folder: Path) -> tuple[ImageRows, ImageRows, ImageRows]:
        stores = [ImageStore.open(folder / part) for part in PARTS]
        train, valid, test = (ImageRows(store, np.arange(len(store))) for store in stores)
        if self.data.split:
            if self.data.split >= len(train):
                raise DataError(
                    f"data.split sets {self.data.split:,} images aside, but there are only {len(train):,}; lower it"
                )
            aside = train.store.held_out(self.data.split)
            train, valid = (ImageRows(train.store, np.flatnonzero(chosen)) for chosen in (~aside, aside))
        if self.data.count:
            order = np.random.default_rng(self.seed).permutation(len(train))[: self.data.count]
            train = ImageRows(train.store, train.rows[np.sort(order)])
        return train, valid, test


class ImageRecipe(Protocol):
    """The sections that all recipes of images have."""

    @property
    def seed(self) -> int: ...
    @property
    def model(self) -> ModelSection: ...
    @property
    def data(self) -> ImagesSection: ...
    @property
    def augmentation(self) -> Augmentation: ...
    @property
    def training(self) -> ExampleTrainingSection: ...


class ImageTask(SupervisedTask[ImageBatch]):
    """Augmented images with labels or masks; their preprocessing is saved beside the weights."""

    @classmethod
    def prepare(cls, recipe: ImageRecipe, folder: Path, poll: Poll) -> None:
        """Decode the images to the size of the model."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: ImageRecipe, folder: Path, device: torch.device) -> None:
        self.device = device
        self.corpus = _preparation(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise no_validation_images()
        self.train, self.valid = DeviceImages(self.corpus.train, device), DeviceImages(self.corpus.valid, device)
        self.loader = image_loader(self.corpus, recipe, device)

    def read(self, batch: ImageBatch, images: DeviceImages) -> Float[Tensor, "B C H W"]:
        """Images as the model reads them, without augmentation."""
        return self.corpus.preprocessing.normalise(images.pixels(batch))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """The metrics of the task on the validation images."""
        return self.measured(model, self.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test images; empty if the recipe has none."""
        part = self.corpus.test
        return self.measured(model, DeviceImages(part, self.device), poll) if len(part) else {}

    @abstractmethod
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """The metrics of a model on some images."""

    def save(self, folder: Path) -> None:
        """Write the preprocessing beside the weights."""
        self.corpus.preprocessing.save(folder)


def _preparation(recipe: ImageRecipe) -> ImagePreparation:
    config = image_config(recipe.model)
    given = initial_preprocessing(recipe.model.init, config)
    return ImagePreparation(recipe.data, config.image_size, config.channels, recipe.seed, given)


def initial_preprocessing(init: str, config: ImageConfig) -> Preprocessing | None:
    """The preprocessing of the model that training starts from; None if it starts from nothing."""
    return Preprocessing.load(initial_folder(init), config.image_size, config.channels) if init else None


def image_loader(corpus: ImageCorpus, recipe: ImageRecipe, device: torch.device) -> Loader[ImageBatch]:
    """Batches of the training images, the same for any number of workers and after any restart."""
    plan, make = corpus.batches(recipe.augmentation, recipe.training.batch, recipe.seed)
    return Loader(plan, make, **loader_options(recipe.training, device))


def image_config(section: ModelSection) -> ImageConfig:
    """The configuration of the model to train: the recipe's, or that of the folder it starts from."""
    if section.init:
        config = identify(initial_folder(section.init))[1].replace(**section.overrides)
    else:
        config = section.config(source_vocab=0, target_vocab=0, pad=0)
    assert isinstance(config, ImageConfig)
    return config


def no_validation_images() -> DataError:
    """The error of a recipe that validates but has no validation images."""
    return DataError(
        "there is no image for validation; give data.valid, set some aside with data.split, "
        "or switch validation off with training.validate_every = 0"
    )
