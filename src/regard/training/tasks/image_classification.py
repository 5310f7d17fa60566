"""Image classification: cross-entropy against labels that smoothing, mixup and cutmix make soft."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.data.batch import ImageBatch
from regard.errors import ConfigError
from regard.models.catalog import MODELS
from regard.training.losses import Loss, soft_cross_entropy
from regard.training.prepare.images import DeviceImages
from regard.training.prepare.initial_model import initialised
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values
from regard.training.tasks.image_base import ImageTask, image_config
from regard.training.tasks.image_classification_recipe import ImagesRecipe


class ImageClassificationTask(ImageTask):
    """Images that belong to one class each."""

    recipe: ImagesRecipe

    def __init__(self, recipe: ImagesRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.recipe = recipe

    def build(self) -> nn.Module:
        """A model that knows the names of the classes."""
        section, names = self.recipe.model, self.corpus.names
        if section.init:
            return initialised(section, {"classes": len(names), "class_names": names})
        config = image_config(section)
        if config.classes != len(names):
            raise ConfigError(f"model.classes is {config.classes}, but the images have {len(names)} classes")
        return MODELS[section.name].model(config.replace(class_names=names))

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """Cross-entropy of the augmented images, summed."""
        mixed = self.recipe.augmentation(self.train.pixels(batch).float() / 255, batch.draws)
        labels = functional.one_hot(self.train.labels[batch.rows], len(self.corpus.names)).float()
        targets = torch.lerp(mixed.partners(labels), labels, mixed.share[:, None])
        smoothing = self.recipe.training.label_smoothing
        targets = (1 - smoothing) * targets + smoothing / targets.shape[1]
        logits: Tensor = model(self.corpus.preprocessing.normalise(mixed.images))
        return Loss(soft_cross_entropy(logits, targets), torch.full((), len(targets), device=self.device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """Loss without smoothing, and accuracy."""
        error = torch.zeros((), device=self.device, dtype=torch.float64)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            logits = model(self.read(batch, images)).float()
            labels = images.labels[batch.rows]
            error += functional.cross_entropy(logits, labels, reduction="sum")
            right += (logits.argmax(dim=1) == labels).sum()
        count = len(images)
        return {"loss": error.item() / count, "accuracy": right.item() / count}
