"""The recipe of task `paths`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.model_section import ModelSection, WordsSection
from regard.training.recipe.path_sections import PathsSection
from regard.training.recipe.training_sections import ExampleTrainingSection

SUCCESS = Metric("success", higher_is_better=True)
SPL = Metric("spl", higher_is_better=True)
ERROR = Metric("error")  # metres from the end of the path to the goal
SEEN = (Metric("seen_success", higher_is_better=True), Metric("seen_spl", higher_is_better=True), Metric("seen_error"))


class RankingSection(PathsSection):
    """[data] of a model that ranks paths."""

    failures: PositiveInt = 3  # candidates that fail, beside one that succeeds, in each training example
    mirror: bool = False  # half of the examples are mirrored, with "left" and "right" exchanged


class RankingRecipe(Recipe):
    """Everything the training of a model that ranks paths depends on."""

    metrics: ClassVar = (LOSS, SUCCESS, SPL, ERROR, *SEEN)

    task: Literal["paths"]
    model: ModelSection = ModelSection(name="vlnbert")
    words: WordsSection = WordsSection()
    data: RankingSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece", "size": 3000, "lowercase": True})
    training: ExampleTrainingSection = ExampleTrainingSection(batch=64)

    @property
    def files(self) -> list[str]:
        """The paths of its data; built-in data have none."""
        return self.data.files
