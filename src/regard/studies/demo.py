"""The built-in translator: trained once from our own phrasebook, kept in the user's cache folder."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from regard.errors import UsageError
from regard.training.loop import train
from regard.training.recipe import load_recipe

RECIPE = "phrasebook"
EXAMPLES = (("we are eating bread", "es"), ("Lucas is visiting Rio in December", "pt"))


def demo_folder() -> Path:
    """Where the demo's model lives."""
    return Path(platformdirs.user_cache_dir("regard")) / "demo"


def demo_model(*, again: bool = False) -> Path:
    """The folder of the built-in translator, trained now if it is not there yet, finished if it was interrupted."""
    folder = demo_folder()
    if again and folder.exists():
        raise UsageError(f"the demo model is in {folder}; remove that folder to train it again")
    if not (folder / "manifest.json").is_file():
        train(load_recipe(RECIPE), folder, resume=folder.exists())
    return folder
