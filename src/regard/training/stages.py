"""Preparing data in stages. A stage that a killed process had finished is not repeated."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from regard.checkpoints import write_folder
from regard.checkpoints.folder import MANIFEST


class Stages:
    """The stages of preparing a folder. Each stage has its own folder beside it until all are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder.with_name(f"{folder.name}.parts")

    def once(self, name: str, write: Callable[[Path], None]) -> Path:
        """Let `write` fill the folder of a stage, unless an earlier process completed it."""
        place = self.parts / name
        if not place.exists():
            write_folder(place, write)
        return place

    def gather(self, *left_out: str) -> None:
        """Link the files of all stages into the final folder, except intermediate files named in `left_out`."""

        def ignored(place: str, names: list[str]) -> set[str]:
            """A stage's own manifest goes; that of a model folder within a stage stays."""
            own = (MANIFEST,) if Path(place).parent == self.parts else ()
            return {name for name in names if name in (*own, *left_out)}

        def link(folder: Path) -> None:
            for stage in sorted(self.parts.iterdir()):
                shutil.copytree(stage, folder, ignore=ignored, copy_function=os.link, dirs_exist_ok=True)

        write_folder(self.folder, link)
        shutil.rmtree(self.parts)
