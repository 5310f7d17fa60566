"""Detection: objects and their boxes, learnt from annotated images (Ren et al. 2015)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import ImageBatch
from regard.data.loader import Loader, Rows
from regard.errors import ConfigError
from regard.families.detection.data import DeviceRegions, FoundBoxes, RegionPreparation, TrueBoxes
from regard.families.detection.metrics import average_precision
from regard.families.detection.proposals import Detections, Truth
from regard.families.detection.recipe import DetectionRecipe
from regard.training.image_task import BatchMaker, image_config, initial_preprocessing, no_validation_images
from regard.training.initial_model import build_on_body
from regard.training.losses import Loss
from regard.training.safeguards import Poll
from regard.training.task import Forward, SupervisedTask, Values, loader_options


class DetectionTask(SupervisedTask[ImageBatch]):
    """Augmented images with boxes; the preprocessing is saved beside the weights."""

    recipe: DetectionRecipe

    @classmethod
    def prepare(cls, recipe: DetectionRecipe, folder: Path, poll: Poll) -> None:
        """Decode the images to the size of the model, and check their boxes."""
        _preparation(recipe).prepare(folder, poll)

    def __init__(self, recipe: DetectionRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = _preparation(recipe).open(folder)
        self.summary = f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and not len(self.corpus.valid):
            raise no_validation_images()
        self.train, self.valid = (DeviceRegions(part, device) for part in (self.corpus.train, self.corpus.valid))
        self.loader = self._loader()

    def _loader(self) -> Loader[ImageBatch]:
        images, recipe = self.corpus.train.images, self.recipe

        def plan(epoch: int) -> list[Rows]:
            return images.plan(recipe.training.batch, recipe.seed, epoch)

        make = BatchMaker(images, recipe.augmentation, recipe.seed, images.resident)
        return Loader(plan, make, **loader_options(recipe.training, self.device))

    def build(self) -> nn.Module:
        """A model that knows the names of the classes."""
        section, names = self.recipe.model, self.corpus.names
        config = image_config(section)
        if config.classes != len(names) and not section.init:
            raise ConfigError(
                f"model.classes is {config.classes}, but boxes have {len(names)} classes: {', '.join(names)}"
            )
        return build_on_body(section, config, names)

    def loss(self, model: Forward, batch: ImageBatch) -> Loss:
        """The four losses of both stages, summed over images."""
        change, images = self.recipe.augmentation, self.train.images
        pixels = change.coloured(images.pixels(batch).float() / 255, batch.draws)
        moved = change.moved(
            self.corpus.preprocessing.normalise(pixels), self.train.sizes(batch), *self.train.truth(batch), batch.draws
        )
        whole = torch.stack([torch.full_like(batch.draws[:, 0], side) for side in pixels.shape[2:]], dim=1)
        losses = model(moved.images, whole, Truth(moved.boxes, moved.labels))
        total: Tensor = sum(each.sum() for each in losses)
        return Loss(total, torch.full((), len(pixels), device=self.device))

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        """Average precision on the validation images."""
        return self._measured(model, self.valid, poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test images; empty if the recipe has none."""
        part = self.corpus.test
        return self._measured(model, DeviceRegions(part, self.device), poll) if len(part) else {}

    def _measured(self, model: nn.Module, regions: DeviceRegions, poll: Poll) -> Values:
        found = average_precision(self._pairs(model, regions, poll), self.corpus.names)
        classes = {f"ap50_{name}": value for name, value in found.ap50_by_class.items()}
        return {"ap": found.ap, "ap50": found.ap50, "ap75": found.ap75, **classes}

    @torch.inference_mode()
    def _pairs(self, model: nn.Module, regions: DeviceRegions, poll: Poll) -> Iterator[tuple[TrueBoxes, FoundBoxes]]:
        """The true and the found boxes of every image."""
        for batch in regions.images.in_order(self.recipe.training.batch):
            poll()
            pixels = self.corpus.preprocessing.normalise(regions.images.pixels(batch))
            found = found_boxes(model(zero_padding(pixels, regions.sizes(batch)), regions.sizes(batch)))
            yield from zip(map(regions.rows.truth, batch.rows.tolist()), found, strict=True)

    def save(self, folder: Path) -> None:
        """Write the preprocessing beside the weights."""
        self.corpus.preprocessing.save(folder)


def zero_padding(images: Tensor, sizes: Tensor) -> Tensor:
    """Normalised images whose padding is 0, as it is when they are read from files."""
    rows, columns = (torch.arange(side, device=images.device) for side in images.shape[2:])
    inside = (rows[:, None] < sizes[:, :1, None]) & (columns < sizes[:, 1:, None])
    return torch.where(inside[:, None], images, 0.0)


def found_boxes(found: Detections) -> list[FoundBoxes]:
    """The detections of every image, without padding."""
    boxes, scores, labels = (each.float().cpu().numpy() for each in found[:3])
    return [
        FoundBoxes(box[real], label[real].astype(np.int64), score[real])
        for box, score, label in zip(boxes, scores, labels, strict=True)
        for real in [label >= 0]
    ]


def _preparation(recipe: DetectionRecipe) -> RegionPreparation:
    config = image_config(recipe.model)
    given = initial_preprocessing(recipe.model.init, config)
    return RegionPreparation(recipe.data, config.image_size, config.channels, recipe.seed, given)
