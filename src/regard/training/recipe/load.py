"""From the name or file of a recipe to the recipe, and from a recipe to its task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.config import nearest
from regard.errors import ConfigError
from regard.families.catalog import TASKS
from regard.search.settings import RECIPE
from regard.training.recipe.base import Recipe
from regard.training.recipe.files import read_values

if TYPE_CHECKING:
    import torch

    from regard.training.safeguards import Poll
    from regard.training.task import Task

USUAL = "translation"  # the task of a recipe that names none


def open_task(recipe: Recipe, folder: Path, device: torch.device, poll: Poll) -> Task[Any]:
    """The task of a recipe, whose data are prepared in `folder` unless they are there; `poll` may raise to stop."""
    task = TASKS[recipe.task].task
    task.prepare(recipe, folder, poll)
    return task.open(recipe, folder, device)


def load_recipe(name_or_path: str | Path, sets: Sequence[str] = ()) -> Recipe:
    """Read a shipped recipe by name, or a file, with `section.key=value` changes made before anything is checked."""
    return parse_recipe(read_values(str(name_or_path), sets), where=str(name_or_path))


def trained_recipe(folder: Path) -> Recipe | None:
    """The recipe that the model of a folder was trained by; None if the folder has none."""
    return load_recipe(folder / RECIPE) if (folder / RECIPE).is_file() else None


def parse_recipe(values: Mapping[str, Any], *, where: str) -> Recipe:
    """Check the values of a recipe; errors name their origin `where`."""
    task = values.get("task", USUAL)
    if task not in TASKS:
        raise ConfigError(f"{where}: task {task!r} is unknown; {nearest(str(task), TASKS)}")
    return TASKS[task].recipe.parse(values, where=where)
