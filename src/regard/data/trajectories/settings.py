"""What a model of tracks must know besides its weights: which scene was left out, and which files it has seen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from pydantic import PositiveInt

from regard.config import Config

FILE = "scenes.json"


class SceneSettings(Config):
    """Written beside the weights."""

    leave_out: str = ""
    trained: tuple[str, ...] = ()  # names of files
    every: PositiveInt = 1

    def save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.model_dump(mode="json"), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The settings of a folder; a folder without them has none to know."""
        file = folder / FILE
        return cls.parse(json.loads(file.read_text(encoding="utf-8")), where=str(file)) if file.is_file() else cls()
