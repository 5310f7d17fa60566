"""The recipe of task `segmentation`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic

from regard.data.images.augmentation import Augmentation
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.image_sections import ImagesSection, refuse_mixing
from regard.training.recipe.metrics import ACCURACY, LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection

IOU = Metric("iou", higher_is_better=True)


class SegmentationRecipe(Recipe):
    """Everything the training of a segmenter depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, IOU)
    no_init: ClassVar = "a segmenter begins with random weights"

    task: Literal["segmentation"]
    model: ModelSection = ModelSection(name="segmenter")
    data: ImagesSection
    augmentation: Augmentation = Augmentation()
    training: ExampleTrainingSection = ExampleTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.data.built_in:
            raise ConfigError("task 'segmentation' learns from masks, which only data.train = 'scenes' has")
        refuse_mixing(self.task, self.augmentation)
        return self
