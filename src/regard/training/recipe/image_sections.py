"""[data] sections of images. Sections that one task alone has are beside that task."""

from __future__ import annotations

from typing import Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.data.images.augmentation import Augmentation
from regard.data.parts import Part
from regard.errors import ConfigError
from regard.training.recipe.files import SCENES


class ScenesSection(Config):
    """[data.scenes]: how many of the built-in images to draw."""

    count: PositiveInt = 20000
    valid_count: PositiveInt = 1000
    test_count: PositiveInt = 1000

    def of(self, part: Part) -> int:
        """How many of a part."""
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[part]


class ImagesSection(Config):
    """[data]: where the labelled images are; a path, a list of paths, or `scenes`."""

    train: str | list[str]
    valid: str | list[str] = ""
    test: str | list[str] = ""
    split: NonNegativeInt = 0  # how many of the last training images are held out if valid is not given
    count: NonNegativeInt = 0  # learn from this many of them, drawn by the seed; 0: all
    labels: tuple[str, ...] = ()  # names of the classes, if the files have none
    scenes: ScenesSection = ScenesSection()

    def paths(self, part: Part) -> list[str]:
        """The files or folders of a part."""
        where: str | list[str] = getattr(self, part)
        return [path for path in ([where] if isinstance(where, str) else where) if path]

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.paths("train"):
            raise ConfigError(f"data.train names no images; give a file, a folder, a list of them, or {SCENES!r}")
        if self.built_in and (self.valid or self.test or self.split or self.labels):
            raise ConfigError("the built-in scenes have parts and labels of their own; size them with [data.scenes]")
        if self.valid and self.split:
            raise ConfigError("data.valid and data.split both say what to validate on; leave one out")
        return self


def refuse_mixing(task: str, augmentation: Augmentation) -> None:
    """Refuse mixup and cutmix for a task whose targets cannot be mixed."""
    if augmentation.mixup or augmentation.cutmix:
        raise ConfigError(f"mixup and cutmix are for task 'images', not {task!r}; take them out of [augmentation]")
