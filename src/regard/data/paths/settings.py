"""What a model of paths must know besides its weights: how candidates are made, which houses it has seen, and how long
the paths of its training data were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from pydantic import PositiveFloat, PositiveInt

from regard.config import Config
from regard.data.paths.candidates import CandidateConfig
from regard.errors import CheckpointError

FILE = "paths.json"


class LengthPrior(Config):
    """The lengths of training paths: their share by number of viewpoints, and mean and deviation in metres."""

    viewpoints: dict[int, float]
    mean: float
    deviation: PositiveFloat


class PathSettings(Config):
    """Written beside the weights of a model of paths."""

    longest: PositiveInt  # tokens of an instruction
    candidates: CandidateConfig
    trained: tuple[str, ...]  # houses
    validated: tuple[str, ...]
    tested: tuple[str, ...]
    prior: LengthPrior

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.model_dump(mode="json"), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        file = folder / FILE
        if not file.is_file():
            raise CheckpointError(f"{folder} has no {FILE}; expected a model of paths that `regard train` made")
        try:
            return cls.parse(json.loads(file.read_text(encoding="utf-8")), where=str(file))
        except ValueError as error:
            raise CheckpointError(f"{file} is no JSON ({error}); train the model again, or restore the file") from None
