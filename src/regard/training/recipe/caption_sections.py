"""[data] of captioned images."""

from __future__ import annotations

from typing import Self

import pydantic
from pydantic import NonNegativeInt

from regard.config import Config
from regard.data.parts import Part
from regard.errors import ConfigError
from regard.training.recipe.files import SCENES
from regard.training.recipe.image_sections import ScenesSection


class CaptionsSection(Config):
    """[data] of captioned images: a file of captions for each part, or `scenes`."""

    train: str
    valid: str = ""
    test: str = ""
    train_images: str = ""  # a folder or an archive; by default it is looked for beside the captions
    valid_images: str = ""
    test_images: str = ""
    split: NonNegativeInt = 0  # how many of the last training images are held out if valid is not given
    skip_bad: bool = False  # leave out damaged images, and images and captions without each other; they are counted
    scenes: ScenesSection = ScenesSection()

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    def files(self, part: Part) -> tuple[str, str]:
        """The file of captions of a part and the place of its images; empty if there are none."""
        return getattr(self, part), getattr(self, f"{part}_images")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no captions; give a file of them, or {SCENES!r}")
        if self.built_in and (self.valid or self.test or self.split):
            raise ConfigError("the built-in scenes have parts of their own; size them with [data.scenes]")
        if self.valid and self.split:
            raise ConfigError("data.valid and data.split both say what to validate on; leave one out")
        return self
