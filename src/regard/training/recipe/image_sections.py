"""The sections of recipes for pictures."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.training.recipe.sections import LoopSection, Metric

SCENES = "scenes"


class ScenesSection(Config):
    """[data.scenes]: how many of the built-in pictures to draw."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 1000
    test_count: PositiveInt = 1000


class ImageSection(Config):
    """[data]: where the labelled pictures are; a path, a list of paths, or `scenes`."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    split: NonNegativeInt = 0  # the last so many of the training pictures, set aside where valid is not given
    count: NonNegativeInt = 0  # learn from so many of them, drawn by the seed; 0: all
    labels: tuple[str, ...] = ()  # names of the classes, where the files have none
    scenes: ScenesSection = ScenesSection()

    def paths(self, part: Literal["train", "valid", "test"]) -> list[str]:
        where: str | list[str] = getattr(self, part)
        return [path for path in ([where] if isinstance(where, str) else where) if path]

    @property
    def drawn(self) -> bool:
        """Whether the pictures are the built-in ones."""
        return self.train == SCENES

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.paths("train"):
            raise ConfigError(f"data.train names no pictures; give a file, a folder, a list of them, or {SCENES!r}")
        if self.drawn and (self.valid or self.test or self.split or self.labels):
            raise ConfigError("the built-in scenes have parts and labels of their own; size them with [data.scenes]")
        if self.valid and self.split:
            raise ConfigError("data.valid and data.split both say what to validate on; leave one out")
        return self


class ImageLoopSection(LoopSection):
    """[training] of models of pictures."""

    lengths_vary: ClassVar[bool] = False

    batch: PositiveInt = 128  # pictures
    schedule: Literal["noam", "cosine", "constant"] = "cosine"


class LabelLoopSection(ImageLoopSection):
    """[training] of classifiers of pictures."""

    label_smoothing: Fraction = 0.0


class PixelsSection(ImageSection):
    """[data] of a model that predicts pixels."""

    size: PositiveInt = 28  # side of the pictures
    channels: Literal[1, 3] = 3
    colours: int = pydantic.Field(default=16, ge=2, le=512)  # of the palette
    judge: str = ""  # the folder of a classifier of these pictures, by whose features completed ones are measured


class PixelsLoopSection(ImageLoopSection):
    """[training] of a model that predicts pixels."""

    probe: NonNegativeInt = 0  # pictures whose features teach a linear classifier at every validation; 0: none
    validate_pictures: PositiveInt = 1000  # whose lower halves are painted anew to be judged


class GanSection(ImageSection):
    """[data] of a generator."""

    judge: str = ""  # the folder of a classifier of these pictures, by whose features generated ones are measured


class GanLoopSection(ImageLoopSection):
    """[training] of a generator and its critic."""

    critic_rate: PositiveFloat = 4.0  # how many times faster the critic learns (Heusel et al. 2017)
    metric: Metric = "frechet"
    validate_pictures: PositiveInt = 5000  # drawn to be measured
