"""The recipe of task `paths`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.path_sections import PathsSection
from regard.training.tasks.path_recipe import PathRecipe

SUCCESS = Metric("success", higher_is_better=True)
SPL = Metric("spl", higher_is_better=True)
ERROR = Metric("error")  # metres from the end of the path to the goal
SEEN = (Metric("seen_success", higher_is_better=True), Metric("seen_spl", higher_is_better=True), Metric("seen_error"))


class RankingSection(PathsSection):
    """[data] of a model that ranks paths."""

    failures: PositiveInt = 3  # candidates that fail, beside one that succeeds, in each training example
    mirror: bool = False  # half of the examples are mirrored, with "left" and "right" exchanged


class RankingRecipe(PathRecipe):
    """Everything the training of a model that ranks paths depends on."""

    metrics: ClassVar = (LOSS, SUCCESS, SPL, ERROR, *SEEN)

    task: Literal["paths"]
    data: RankingSection
