"""The recipe of task `pixels`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.data.images.augmentation import Augmentation
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.image_sections import ImagesSection, refuse_mixing
from regard.training.recipe.metrics import ACCURACY, FRECHET, LOSS
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection


class PixelsSection(ImagesSection):
    """[data] of a model that predicts pixels."""

    size: PositiveInt = 28  # side of the images
    channels: Literal[1, 3] = 3
    colours: int = pydantic.Field(default=16, ge=2, le=512)  # of the palette
    judge: str = ""  # folder of a classifier of these images; its features measure the Fréchet distance


class PixelsTrainingSection(ExampleTrainingSection):
    """[training] of a model that predicts pixels."""

    probe: NonNegativeInt = 0  # images whose features train a linear classifier at every validation; 0: none
    validate_pictures: PositiveInt = 1000  # images whose lower halves are completed for the Fréchet distance


class PixelsRecipe(Recipe):
    """Everything the training of a model that predicts pixels depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, FRECHET)
    no_init: ClassVar = "its palette is that of the training images"

    task: Literal["pixels"]
    model: ModelSection = ModelSection(name="gpt")
    data: PixelsSection
    augmentation: Augmentation = Augmentation()
    training: PixelsTrainingSection = PixelsTrainingSection()

    @property
    def vocabulary(self) -> int:
        """The colours, and the token that starts an image."""
        return self.data.colours + 1

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse_mixing(self.task, self.augmentation)
        if self.goal == ACCURACY and not self.training.probe:
            raise ConfigError("training.metric is 'accuracy', that of the probe; set training.probe above 0")
        if self.goal == FRECHET and not self.data.judge:
            raise ConfigError("training.metric is 'frechet', which a judge measures; give the folder of a classifier, "
                              "data.judge")  # fmt: skip
        return self
