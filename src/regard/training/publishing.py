"""The files that a run publishes: its recipe beside every checkpoint, and at the end one model folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from regard.checkpoints import load_model, model_card, publish, write_folder, write_model
from regard.checkpoints.models import own_tensors
from regard.config import Config
from regard.families.loading import use_line
from regard.search.settings import RECIPE
from regard.training.metrics_log import METRICS
from regard.training.recipe.base import Recipe
from regard.training.recipe.load import load_recipe
from regard.training.task import Task

NEW_RECIPE = f"{RECIPE}.new"
CARD = "README.md"
FIXED = (
    "task",
    "seed",
    "model",
    "words",
    "data",
    "audio",
    "tokenizer",
    "augmentation",
)  # what a resumed run may not change


def differences(recipe: Recipe, out: Path) -> list[str]:
    """The fixed sections in which a recipe differs from that of the run in `out`."""
    before = load_recipe(out / RECIPE).resolved()  # it may be older than some keys of its model
    return [name for name in FIXED if getattr(before, name, None) != getattr(recipe, name, None)]


def write_recipe(recipe: Recipe, out: Path) -> None:
    """Write the recipe of a run into its folder, whole or not at all."""
    temporary = out / NEW_RECIPE
    temporary.write_text(recipe.to_toml(), encoding="utf-8")
    temporary.replace(out / RECIPE)


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, verified; tied weights appear once."""
    return own_tensors(load_model(checkpoint).model)


def write_beside(folder: Path, recipe: Recipe, out: Path) -> None:
    """Write the resolved recipe and the metrics so far beside a model."""
    (folder / RECIPE).write_text(recipe.to_toml(), encoding="utf-8")
    shutil.copyfile(out / METRICS, folder / METRICS)


def publish_model(
    out: Path, recipe: Recipe, model: nn.Module, task: Task[Any], metrics: Mapping[str, Mapping[str, float]]
) -> None:
    """Write the finished model into the run folder itself, with its card."""
    final, name = out / "final", recipe.model.name
    arrows = {metric.name: f" {metric.arrow}" for metric in recipe.metrics}
    table = {
        f"{part} {metric}{arrows.get(metric, '')}": value
        for part, values in metrics.items()
        for metric, value in values.items()
    }

    def write(folder: Path) -> None:
        write_model(folder, name, model)
        task.save(folder)
        task.finish(model, folder)
        write_beside(folder, recipe, out)
        assert isinstance(model.config, Config)
        use = use_line(folder, name, model.config)
        card = model_card(name, model.config, use=use, data=f"{task.summary}.", metrics=table, more=task.conclusion)
        (folder / CARD).write_text(card, encoding="utf-8")

    write_folder(final, write)
    publish(final, out)
    shutil.rmtree(final)
