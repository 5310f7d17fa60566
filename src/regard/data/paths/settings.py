"""What a model of paths must know besides its weights: how candidates are made, which houses it has seen, and how long
the paths of its training data were."""

from __future__ import annotations

from typing import ClassVar

from pydantic import PositiveFloat, PositiveInt

from regard.config import Config, SavedConfig
from regard.data.paths.candidates import CandidateConfig


class LengthPrior(Config):
    """The lengths of training paths: their share by number of viewpoints, and mean and deviation in metres."""

    viewpoints: dict[int, float]
    mean: float
    deviation: PositiveFloat


class PathSettings(SavedConfig):
    """Written beside the weights of a model of paths."""

    file_name: ClassVar[str] = "paths.json"

    longest: PositiveInt  # tokens of an instruction
    candidates: CandidateConfig
    trained: tuple[str, ...]  # houses
    validated: tuple[str, ...]
    tested: tuple[str, ...]
    prior: LengthPrior
