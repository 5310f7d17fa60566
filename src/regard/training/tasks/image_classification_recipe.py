"""The recipe of task `images`."""

from __future__ import annotations

from typing import ClassVar, Literal

from regard.config import Fraction
from regard.data.images.augmentation import Augmentation
from regard.training.recipe.base import Recipe
from regard.training.recipe.image_sections import ImagesSection
from regard.training.recipe.metrics import ACCURACY, LOSS
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection


class ClassifierTrainingSection(ExampleTrainingSection):
    """[training] of image classifiers."""

    label_smoothing: Fraction = 0.0


class ImagesRecipe(Recipe):
    """Everything the training of an image classifier depends on."""

    metrics: ClassVar = (LOSS, ACCURACY)

    task: Literal["images"]
    model: ModelSection
    data: ImagesSection
    augmentation: Augmentation = Augmentation()
    training: ClassifierTrainingSection = ClassifierTrainingSection()
