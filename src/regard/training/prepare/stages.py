"""Preparing data in stages, each done once: what a killed process had finished is there for the next."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from regard.checkpoints import write_folder
from regard.checkpoints.folder import MANIFEST


class Stages:
    """The stages of a folder, in folders of their own beside it until all are done."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts = folder.with_name(f"{folder.name}.parts")

    def once(self, name: str, write: Callable[[Path], None]) -> Path:
        """Let `write` fill the folder of a stage, unless it is there, complete, from before."""
        place = self.parts / name
        if not place.exists():
            write_folder(place, write)
        return place

    def gather(self, *left_out: str) -> None:
        """Put what the stages made into the folder they were for; files called as in `left_out` were theirs alone."""
        ignored = shutil.ignore_patterns(MANIFEST, *left_out)

        def link(folder: Path) -> None:
            for stage in sorted(self.parts.iterdir()):
                shutil.copytree(stage, folder, ignore=ignored, copy_function=os.link, dirs_exist_ok=True)

        write_folder(self.folder, link)
        shutil.rmtree(self.parts)
