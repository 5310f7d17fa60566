"""Where data files are: `data:NAME` in a recipe or on the command line is a file below the data root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

PREFIX, VARIABLE, USUAL = "data:", "REGARD_DATA", "../shared/data"


def data_root() -> str:
    """The folder of data files: that of the variable REGARD_DATA, or the usual one, seen from the working folder."""
    return os.environ.get(VARIABLE) or USUAL


def located(value: Any) -> Any:
    """A value of a recipe with every `data:NAME` in it as a path below the data root."""
    if isinstance(value, str) and value.startswith(PREFIX):
        return f"{data_root().rstrip('/')}/{value.removeprefix(PREFIX)}"
    if isinstance(value, dict):
        return {key: located(each) for key, each in value.items()}
    return [located(each) for each in value] if isinstance(value, list) else value


def is_there(path: str) -> bool:
    """Whether a file or folder exists, or files that only add a suffix to the name, as the two of a pair do."""
    place = Path(path)
    return place.exists() or (place.parent.is_dir() and any(place.parent.glob(f"{place.name}.*")))


def missing(path: str) -> str:
    """What to say of a file below the data root that is not there; nothing of one that is, or is elsewhere."""
    root = data_root().rstrip("/")
    if not path.startswith(f"{root}/") or is_there(path):
        return ""
    return (
        f"{path} is not there; the data root is {root}: set {VARIABLE} or --data-root to the folder that has the data"
    )
