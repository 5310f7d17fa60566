"""The recipes of tasks on images: classes, masks, pixels, and generated images."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Fraction
from regard.data.images.augmentation import Augmentation
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import ImagesSection, refuse_mixing
from regard.training.recipe.sections import ACCURACY, FRECHET, LOSS, ExampleTrainingSection, Metric, ModelSection


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

    @property
    def lengths(self) -> tuple[int, int]:
        """A token for every pixel."""
        return self.data.size**2, self.data.size**2

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse_mixing(self.task, self.augmentation)
        if self.goal == ACCURACY and not self.training.probe:
            raise ConfigError("training.metric is 'accuracy', that of the probe; set training.probe above 0")
        if self.goal == FRECHET and not self.data.judge:
            raise ConfigError("training.metric is 'frechet', which a judge measures; give the folder of a classifier, "
                              "data.judge")  # fmt: skip
        return self


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
