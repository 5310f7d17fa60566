"""The recipe of task `gan`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import PositiveFloat, PositiveInt

from regard.data.images.augmentation import Augmentation
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.image_sections import ImagesSection, refuse_mixing
from regard.training.recipe.metrics import FRECHET
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection


class GanSection(ImagesSection):
    """[data] of an image generator."""

    judge: str = ""  # folder of a classifier of these images; its features measure the Fréchet distance


class GanTrainingSection(ExampleTrainingSection):
    """[training] of a generator and its critic."""

    critic_rate: PositiveFloat = 4.0  # the critic's learning rate, in multiples of the generator's (Heusel et al. 2017)
    metric: str = FRECHET.name
    validate_pictures: PositiveInt = 5000  # images generated for the Fréchet distance


class GanRecipe(Recipe):
    """Everything the training of an image generator depends on."""

    metrics: ClassVar = (FRECHET,)
    no_init: ClassVar = "a generator begins with random weights"

    task: Literal["gan"]
    model: ModelSection = ModelSection(name="sagan")
    data: GanSection
    augmentation: Augmentation = Augmentation()
    training: GanTrainingSection = GanTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.validate_every and not self.data.judge:
            raise ConfigError(
                "data.judge must be given, the folder of a classifier that measures what is generated; or switch "
                "validation off with training.validate_every = 0"
            )
        refuse_mixing(self.task, self.augmentation)
        return self
