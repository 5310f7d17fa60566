"""The recipe of task `detection`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from regard.data.regions.augmentation import BoxAugmentation
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.region_sections import RegionsSection
from regard.training.recipe.training_sections import ExampleTrainingSection

AP = Metric("ap", higher_is_better=True)  # the mean over IoU thresholds .50 to .95
AP50 = Metric("ap50", higher_is_better=True)
AP75 = Metric("ap75", higher_is_better=True)


class DetectionTrainingSection(ExampleTrainingSection):
    """[training] of a detector."""

    batch: PositiveInt = 16
    metric: str = AP50.name


class DetectionRecipe(Recipe):
    """Everything the training of a detector depends on."""

    metrics: ClassVar = (AP, AP50, AP75)

    task: Literal["detection"]
    model: ModelSection = ModelSection(name="detector")
    data: RegionsSection
    augmentation: BoxAugmentation = BoxAugmentation()
    training: DetectionTrainingSection = DetectionTrainingSection()
