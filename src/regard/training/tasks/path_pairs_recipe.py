"""The recipe of task `path_pairs`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from regard.config import Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import ACCURACY, LOSS, PERPLEXITY, Metric
from regard.training.recipe.model_section import ModelSection, WordsSection
from regard.training.recipe.path_sections import PathsSection
from regard.training.recipe.training_sections import ExampleTrainingSection

STEP_ERROR = Metric("step_error")  # mean squared error of the numbers of hidden steps
MATCH = Metric("match", higher_is_better=True)


class HiddenPairsSection(PathsSection):
    """[data] of a model that predicts hidden words and steps."""

    share: float = pydantic.Field(default=0.15, gt=0, lt=1)  # of the words, to be predicted
    mismatched: Fraction = 0.25  # share of the paths that are exchanged for one that fails


class PathPairsRecipe(Recipe):
    """Everything the training on pairs of instruction and path depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, ACCURACY, STEP_ERROR, MATCH)

    task: Literal["path_pairs"]
    model: ModelSection = ModelSection(name="vlnbert")
    words: WordsSection = WordsSection()
    data: HiddenPairsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece", "size": 3000, "lowercase": True})
    training: ExampleTrainingSection = ExampleTrainingSection(batch=64)

    @property
    def files(self) -> list[str]:
        """The paths of its data; built-in data have none."""
        return self.data.files
