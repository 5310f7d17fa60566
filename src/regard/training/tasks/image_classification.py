"""Classes of pictures: cross-entropy against labels that smoothing, mixup and cutmix make soft."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.checkpoints.models import identify
from regard.data.batch import ImageBatch
from regard.data.images.augmentation import Mixed
from regard.data.images.reading import Preprocessing
from regard.errors import ConfigError, DataError
from regard.layers.vision import ImageConfig
from regard.models.catalog import MODELS
from regard.training.losses import Loss, soft_cross_entropy
from regard.training.prepare.images import ImageCorpus, ImagePreparation, OnDevice, Pictures
from regard.training.prepare.texts import initial_folder, initialised
from regard.training.recipe.recipes import ImagesRecipe, SegmentationRecipe
from regard.training.recipe.sections import ModelSection
from regard.training.safeguards import Poll
from regard.training.tasks.supervised import SupervisedTask


class ImageTask(SupervisedTask[ImageBatch]):
    """What tasks on pictures share: augmented batches, and the preprocessing beside the weights."""

    def __init__(
        self, recipe: ImagesRecipe | SegmentationRecipe, folder: Path, device: torch.device, poll: Poll
    ) -> None:
        self.recipe, self.device = recipe, device
        config = image_config(recipe.model)
        given = None
        if recipe.model.init:
            given = Preprocessing.load(initial_folder(recipe.model.init), config.image_size, config.channels)
        preparation = ImagePreparation(recipe.data, config.image_size, config.channels, recipe.seed, given)
        self.corpus: ImageCorpus = preparation.corpus(folder, poll)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise DataError(
                "there is no picture for validation; give data.valid, set some aside with data.split, "
                "or switch validation off with training.validate_every = 0"
            )
        self.train, self.valid = OnDevice(self.corpus.train, device), OnDevice(self.corpus.valid, device)
        self.loader = self.corpus.loader(recipe.augmentation, recipe.training, recipe.seed, device)

    def read(self, batch: ImageBatch, pictures: OnDevice) -> Float[Tensor, "B C H W"]:
        """Pictures as the model reads them, without changes."""
        return self.corpus.preprocessing.normalise(pictures.pixels(batch))

    def validate(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The metrics of the task on the validation pictures."""
        return self.measured(model, self.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> dict[str, float]:
        """The same on the test pictures; nothing where the recipe has none."""
        part: Pictures = self.corpus.test
        return self.measured(model, OnDevice(part, self.device), poll) if len(part) else {}

    @abstractmethod
    def measured(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> dict[str, float]:
        """How good a model is on some pictures."""

    def save(self, folder: Path) -> None:
        """Put the preprocessing beside the weights."""
        self.corpus.preprocessing.save(folder)


class Images(ImageTask):
    """Pictures that belong to one class each."""

    recipe: ImagesRecipe

    def build(self) -> nn.Module:
        """A model that knows the names of the classes."""
        section, names = self.recipe.model, self.corpus.names
        if section.init:
            return initialised(section, {"classes": len(names), "class_names": names})
        config = image_config(section)
        if config.classes != len(names):
            raise ConfigError(f"model.classes is {config.classes}, but the pictures have {len(names)} classes")
        return MODELS[section.name].model(config.replace(class_names=names))

    def loss(self, model: Callable[..., Any], batch: ImageBatch) -> Loss:
        """Cross-entropy of the augmented pictures, summed."""
        mixed: Mixed = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws)
        labels = functional.one_hot(self.train.labels[batch.rows], len(self.corpus.names)).float()
        targets = torch.lerp(mixed.partners(labels), labels, mixed.share[:, None])
        smoothing = self.recipe.training.label_smoothing
        targets = (1 - smoothing) * targets + smoothing / targets.shape[1]
        logits: Tensor = model(self.corpus.preprocessing.normalise(mixed.images))
        return Loss(soft_cross_entropy(logits, targets), torch.full((), len(targets), device=self.device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, pictures: OnDevice, poll: Poll) -> dict[str, float]:
        """Loss without smoothing, and accuracy."""
        error = torch.zeros((), device=self.device, dtype=torch.float64)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        for batch in pictures.in_order(self.recipe.training.batch):
            poll()
            logits = model(self.read(batch, pictures)).float()
            labels = pictures.labels[batch.rows]
            error += functional.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(dim=1) == labels).sum()
        count = len(pictures.pictures)
        return {"loss": error.item() / count, "accuracy": right.item() / count}


def image_config(section: ModelSection) -> ImageConfig:
    """The configuration of the model to train: the recipe's, or that of the folder it starts from."""
    if section.init:
        config = identify(initial_folder(section.init))[1].replace(**section.overrides)
    else:
        config = section.config(source_vocab=0, target_vocab=0, pad=0)
    assert isinstance(config, ImageConfig)
    return config
