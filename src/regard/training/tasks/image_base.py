"""What tasks on images share."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.checkpoints.models import identify
from regard.data.batch import ImageBatch
from regard.data.images.augmentation import Augmentation
from regard.data.images.reading import Preprocessing
from regard.data.loader import Loader
from regard.errors import DataError
from regard.layers.vision import ImageConfig
from regard.training.prepare.images import DeviceImages, ImageCorpus, ImagePreparation
from regard.training.prepare.initial_model import initial_folder
from regard.training.recipe.image_sections import ImagesSection
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection
from regard.training.safeguards import Poll
from regard.training.tasks.base import SupervisedTask, Values, loader_options


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
