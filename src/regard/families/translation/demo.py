"""The built-in translator: trained once on the built-in phrasebook, and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import platformdirs

import regard
from regard.errors import UsageError
from regard.training.recipe.files import PHRASEBOOK, recipe_text
from regard.training.recipe.load import load_recipe

RECIPE = "phrasebook"
ABOUT = (
    "this is a small built-in model for short everyday sentences: greetings, introductions, family, food, shopping, "
    "travel, time, weather; words it does not know are copied. Train your own for more: regard train --help"
)
EXAMPLES = (
    ("we are eating bread", "es"),
    ("Lucas is visiting Rio in December", "pt"),
    ("Hello, my name is Anna.", "es"),
)


def demo_folder() -> Path:
    """The folder of the demo's model. Each version of recipe and phrasebook has its own, so no model is outdated."""
    return Path(platformdirs.user_cache_dir("regard")) / f"{RECIPE}-{_edition(Path(regard.__file__).parent)}" / "demo"


@cache
def _edition(package: Path) -> str:
    words = sorted((package / "data" / "synthetic" / "phrasebook").glob("*.[pt]*"))
    made_of = [recipe_text(RECIPE).encode(), *(file.read_bytes() for file in words)]
    return hashlib.sha256(b"".join(made_of)).hexdigest()[:8]


def about(models: Sequence[str]) -> str:
    """What the built-in translator knows, if it is one of these models or the default; otherwise an empty text."""
    folders = [Path(name) for name in models] or [demo_folder()]
    return ABOUT if any(_speaks_every_day(folder / "recipe.toml") for folder in folders) else ""


def _speaks_every_day(recipe: Path) -> bool:
    if not recipe.is_file():
        return False
    data = tomllib.loads(recipe.read_text(encoding="utf-8")).get("data", {})
    return data.get("train") == PHRASEBOOK and bool(data.get("phrasebook", {}).get("everyday"))


def demo_model(*, again: bool = False) -> Path:
    """The folder of the built-in translator; trained now if it is missing, resumed if training was interrupted."""
    folder = demo_folder()
    if again and folder.exists():
        raise UsageError(f"the demo model is in {folder}; remove that folder to train it again")
    if not (folder / "manifest.json").is_file():
        from regard.training.loop import train  # takes seconds, and a server asks only for the folder

        train(load_recipe(RECIPE), folder, resume=folder.exists())
    return folder
