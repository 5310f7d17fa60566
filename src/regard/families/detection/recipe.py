"""The recipe of task `detection`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.data.sources import Part
from regard.errors import ConfigError
from regard.families.detection.augmentation import BoxAugmentation
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import ScenesSection
from regard.training.recipe.files import SCENES
from regard.training.recipe.sections import ExampleTrainingSection, Metric, ModelSection


class RegionsSection(Config):
    """[data]: where the annotated images are: COCO's JSON, a folder of Pascal VOC, or `scenes`."""

    train: str
    valid: str = ""
    test: str = ""
    train_images: str = ""  # folder or tar archive of the images of COCO's JSON, if it is not beside it
    valid_images: str = ""
    test_images: str = ""
    split: NonNegativeInt = 0  # how many of the last training images are held out if valid is not given
    count: NonNegativeInt = 0  # learn from this many of them, drawn by the seed; 0: all
    labels: tuple[str, ...] = ()  # names of the classes, in order; default: as in the training file
    skip_bad: bool = False  # leave out boxes without area or outside of their image, and unreadable images; name them
    scenes: ScenesSection = ScenesSection()

    def place(self, part: Part) -> tuple[str, str]:
        """The annotations of a part, and where its images are."""
        return getattr(self, part), getattr(self, f"{part}_images")

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.built_in and (self.valid or self.test or self.split or self.labels):
            raise ConfigError("the built-in scenes have parts and labels of their own; size them with [data.scenes]")
        if self.valid and self.split:
            raise ConfigError("data.valid and data.split both say what to validate on; leave one out")
        return self


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
