"""[data] of recordings with texts."""

from __future__ import annotations

from typing import Self

import pydantic
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from regard.config import Config, Fraction
from regard.data.parts import Part
from regard.data.speech.batches import JoinConfig
from regard.errors import ConfigError

SPEECH = "builtin:speech"


class DrawnSpeechSection(Config):
    """[data.drawn]: how many of the built-in utterances to draw, and how many digits each has."""

    count: PositiveInt = 4000
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 200
    shortest: PositiveInt = 1
    longest: PositiveInt = 5

    def of(self, part: Part) -> int:
        """How many of a part."""
        return {"train": self.count, "valid": self.valid_count, "test": self.test_count}[part]


class SpeechSection(Config):
    """[data]: a manifest, a folder or an archive for each part, or `builtin:speech`."""

    train: str
    valid: str = ""
    test: str = ""
    split: Fraction = 0.1  # share of the training recordings for each of validation and test, where none are given
    held_out_speaker: str = ""  # test on all recordings of this speaker, and train on none of them
    speeds: tuple[PositiveFloat, ...] = (1.0,)  # copies of the training recordings, played slower and faster
    count: NonNegativeInt = 0  # learn from this many recordings, drawn by the seed; 0: all
    longest: float = Field(default=30.0, gt=0)  # seconds; longer recordings are refused, since they need much memory
    skip_bad: bool = False  # leave out recordings that cannot be read or whose text does not fit; they are counted
    join: JoinConfig = JoinConfig()
    drawn: DrawnSpeechSection = DrawnSpeechSection()

    @property
    def built_in(self) -> bool:
        """Whether the recordings are the built-in ones."""
        return self.train == SPEECH

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no recordings; give a manifest or a folder of them, or {SPEECH!r}")
        if self.built_in and (self.valid or self.test or self.held_out_speaker):
            raise ConfigError("the built-in speech has parts of its own; size them with [data.drawn]")
        if self.held_out_speaker and self.test:
            raise ConfigError("data.test and data.held_out_speaker both say what to test on; leave one out")
        if 1.0 not in self.speeds:
            raise ConfigError(f"data.speeds = {list(self.speeds)}: must contain 1, the speed of all other parts")
        return self
