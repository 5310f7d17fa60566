"""The recipes of the tasks on texts and regions: `vision_language`, `retrieval`, `pointing` and `questions`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic

from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.files import SCENES
from regard.training.recipe.metrics import ACCURACY, LOSS, Metric
from regard.training.recipe.model_section import ModelSection, WordsSection
from regard.training.recipe.region_text_sections import (
    MaskedPairsSection,
    RegionTextsSection,
    RetrievalSection,
)
from regard.training.recipe.training_sections import ExampleTrainingSection

MATCH = Metric("match", higher_is_better=True)
RECALL = Metric("recall", higher_is_better=True)
WHOLE_WORDS = VocabularyConfig.parse({"kind": "word", "lowercase": True})


class RegionTextRecipe(Recipe):
    """What the recipes of texts and regions share."""

    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, ACCURACY)

    model: ModelSection = ModelSection(name="vilbert", preset="tiny")
    words: WordsSection = WordsSection()
    data: RegionTextsSection
    tokenizer: VocabularyConfig = WHOLE_WORDS
    training: ExampleTrainingSection = ExampleTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.words.init and self.model.init:
            raise ConfigError("model.init has words of its own; leave words.init out")
        return self


class VisionLanguageRecipe(RegionTextRecipe):
    """Everything the pre-training on images and captions depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, MATCH)

    task: Literal["vision_language"]
    data: MaskedPairsSection


class RetrievalRecipe(RegionTextRecipe):
    """Everything that training to find images by captions, and captions by images, depends on."""

    metrics: ClassVar = (LOSS, RECALL)

    task: Literal["retrieval"]
    data: RetrievalSection


class SceneTextRecipe(RegionTextRecipe):
    """A recipe whose texts only the built-in scenes have."""

    @pydantic.model_validator(mode="after")
    def _check_data(self) -> Self:
        if not self.data.built_in:
            raise ConfigError(f"task {self.task!r} needs texts with known answers, which only {SCENES!r} has")
        return self


class PointingRecipe(SceneTextRecipe):
    """Everything that training to find the region that a phrase means depends on."""

    task: Literal["pointing"]


class QuestionsRecipe(SceneTextRecipe):
    """Everything that training to answer questions about images depends on."""

    task: Literal["questions"]
