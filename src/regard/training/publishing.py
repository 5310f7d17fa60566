"""What a run leaves behind: the recipe beside every checkpoint, and in the end one model folder."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from regard.checkpoints import load_model, model_card, publish, write_folder, write_model
from regard.checkpoints.models import own_tensors
from regard.config import Config
from regard.inference.pipelines.catalog import use_line
from regard.training.metrics import METRICS
from regard.training.optim import mean_weights
from regard.training.recipe.recipes import AnyRecipe, load_recipe
from regard.training.recipe.sections import HIGHER_IS_BETTER
from regard.training.tasks.translation import Task

RECIPE, NEW_RECIPE = "recipe.toml", "recipe.toml.new"
CARD = "README.md"
FIXED = (
    "task",
    "seed",
    "model",
    "data",
    "tokenizer",
    "augmentation",
)  # what a resumed run must share with its beginning


def differences(recipe: AnyRecipe, out: Path) -> list[str]:
    """The parts of a recipe in which a run differs from how it was begun, though it must not."""
    before = load_recipe(out / RECIPE).resolved()  # it may be older than some keys of its model
    return [name for name in FIXED if getattr(before, name, None) != getattr(recipe, name, None)]


def write_recipe(recipe: AnyRecipe, out: Path) -> None:
    """Put the recipe of a run into its folder, whole or not at all."""
    temporary = out / NEW_RECIPE
    temporary.write_text(recipe.to_toml(), encoding="utf-8")
    temporary.replace(out / RECIPE)


def better(metric: str, value: float, best: float | None) -> bool:
    """Whether a measured value beats the best so far; one that is not a number never does."""
    if best is None or math.isnan(value):
        return not math.isnan(value)
    return value > best if metric in HIGHER_IS_BETTER else value < best


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, verified, tied ones once."""
    return own_tensors(load_model(checkpoint).model)


def mean_of(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The element-wise mean of the weights of several checkpoints."""
    return mean_weights([weights_of(checkpoint) for checkpoint in checkpoints])


def write_beside(folder: Path, recipe: AnyRecipe, out: Path) -> None:
    """Put the resolved recipe and the metrics so far beside a model."""
    (folder / RECIPE).write_text(recipe.to_toml(), encoding="utf-8")
    shutil.copyfile(out / METRICS, folder / METRICS)


def publish_model(
    out: Path, recipe: AnyRecipe, model: nn.Module, task: Task, metrics: Mapping[str, Mapping[str, float]]
) -> None:
    """Put the finished model into the run folder itself, with its card."""
    final = out / "final"
    name = recipe.model.name
    table = {f"{part} {metric}": value for part, values in metrics.items() for metric, value in values.items()}

    def write(folder: Path) -> None:
        write_model(folder, name, model)
        task.save(folder)
        task.finish(model, folder)
        write_beside(folder, recipe, out)
        assert isinstance(model.config, Config)
        (folder / CARD).write_text(
            model_card(
                name, model.config, use=use_line(folder, name, model.config), data=f"{task.summary}.", metrics=table
            ),
            encoding="utf-8",
        )

    write_folder(final, write)
    publish(final, out)
    shutil.rmtree(final)
