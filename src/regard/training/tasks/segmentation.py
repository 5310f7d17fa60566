"""Segmentation: the class of every pixel, learnt from masks (Long et al. 2015)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from regard.data.batch import ImageBatch
from regard.errors import ConfigError
from regard.training.evaluation.scores import mean_overlap
from regard.training.losses import Loss
from regard.training.prepare.images import DeviceImages
from regard.training.prepare.initial_model import build_on_body
from regard.training.safeguards import Poll
from regard.training.tasks.base import Forward, Values
from regard.training.tasks.image_base import ImageTask, image_config
from regard.training.tasks.segmentation_recipe import SegmentationRecipe

BACKGROUND = "background"


class SegmentationTask(ImageTask):
    """Images whose every pixel belongs to a class; class 0 is the background."""

    recipe: SegmentationRecipe

    def __init__(self, recipe: SegmentationRecipe, folder: Path, device: torch.device) -> None:
        super().__init__(recipe, folder, device)
        self.recipe = recipe

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes of pixels."""
        return BACKGROUND, *self.corpus.names

    def build(self) -> nn.Module:
        """A model that knows the names of the classes."""
        config = image_config(self.recipe.model)
        if config.classes != len(self.names):
            raise ConfigError(f"model.classes is {config.classes}, but pixels have {len(self.names)} classes")
        return build_on_body(self.recipe.model, config, self.names)

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """Cross-entropy, the mean over the pixels of each image."""
        pixels, masks = self.train.pixels(batch).float() / 255, self.train.masks(batch)
        changed = self.recipe.augmentation(pixels, batch.draws, masks)
        assert changed.masks is not None
        logits = model(self.corpus.preprocessing.normalise(changed.images)).float()
        total = functional.cross_entropy(logits, changed.masks, reduction="sum") / changed.masks[0].numel()
        return Loss(total, torch.full((), len(masks), device=self.device))

    @torch.inference_mode()
    def measured(self, model: nn.Module, images: DeviceImages, poll: Poll) -> Values:
        """Loss and accuracy of pixels, and the mean intersection over union of classes."""
        classes, error = len(self.names), torch.zeros((), device=self.device, dtype=torch.float64)
        confusion = torch.zeros(classes * classes, device=self.device, dtype=torch.int64)
        for batch in images.in_order(self.recipe.training.batch):
            poll()
            logits, masks = model(self.read(batch, images)).float(), images.masks(batch)
            error += functional.cross_entropy(logits, masks, reduction="sum")
            confusion += torch.bincount((masks * classes + logits.argmax(dim=1)).flatten(), minlength=classes**2)
        table = confusion.view(classes, classes).cpu().numpy()
        return {
            "loss": error.item() / table.sum(),
            "accuracy": float(np.trace(table) / table.sum()),
            "iou": mean_overlap(table),
        }
