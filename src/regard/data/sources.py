"""Where data files are: `data:NAME` in a recipe or on the command line is a file below the data root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")


PREFIX, VARIABLE, USUAL = "data:", "REGARD_DATA", "../shared/data"


def data_root() -> str:
    """The folder of data files: the environment variable REGARD_DATA, or a default relative to the working folder."""
    return os.environ.get(VARIABLE) or USUAL


def located(value: Any) -> Any:
    """A value of a recipe in which every `data:NAME` is replaced by a path below the data root."""
    if isinstance(value, str) and value.startswith(PREFIX):
        return f"{data_root().rstrip('/')}/{value.removeprefix(PREFIX)}"
    if isinstance(value, dict):
        return {key: located(each) for key, each in value.items()}
    return [located(each) for each in value] if isinstance(value, list) else value


def is_there(path: str) -> bool:
    """Whether a file or folder exists, or files with this name and a suffix, such as the two files of a Moses pair."""
    place = Path(path)
    return place.exists() or (place.parent.is_dir() and any(place.parent.glob(f"{place.name}.*")))


def missing(path: str) -> str:
    """The error message for a missing file below the data root; empty if the file exists or is not below it."""
    root = data_root().rstrip("/")
    if not path.startswith(f"{root}/") or is_there(path):
        return ""
    return (
        f"{path} is not there; the data root is {root}: set {VARIABLE} or --data-root to the folder that has the data"
    )
