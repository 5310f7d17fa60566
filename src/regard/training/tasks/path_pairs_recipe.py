"""The recipe of task `path_pairs`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from regard.config import Fraction
from regard.training.recipe.metrics import ACCURACY, LOSS, PERPLEXITY, Metric
from regard.training.recipe.path_sections import PathsSection
from regard.training.tasks.path_recipe import PathRecipe

STEP_ERROR = Metric("step_error")  # mean squared error of the numbers of hidden steps
MATCH = Metric("match", higher_is_better=True)


class HiddenPairsSection(PathsSection):
    """[data] of a model that predicts hidden words and steps."""

    share: float = pydantic.Field(default=0.15, gt=0, lt=1)  # of the words, to be predicted
    mismatched: Fraction = 0.25  # share of the paths that are exchanged for one that fails


class PathPairsRecipe(PathRecipe):
    """Everything the training on pairs of instruction and path depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, ACCURACY, STEP_ERROR, MATCH)

    task: Literal["path_pairs"]
    data: HiddenPairsSection
