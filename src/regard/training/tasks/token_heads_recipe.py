"""The recipes of tasks `tags` and `answers`: models that say something about parts of a text."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config
from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import ACCURACY, EXACT, LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import TextTrainingSection

F1 = Metric("f1", higher_is_better=True)


class ReadTextsSection(Config):
    """[data] of texts with something to find in each; `builtin:facts` is generated."""

    train: str
    valid: str = ""
    test: str = ""
    count: PositiveInt = 5000  # training texts of builtin:facts
    held_out: PositiveInt = 300  # of its texts for validation, and as many for testing
    longest: int = pydantic.Field(default=256, ge=8)  # tokens; training leaves longer texts out, and counts them


class TaggedSection(ReadTextsSection):
    """[data] of tagged words: CoNLL's columns."""

    column: NonNegativeInt | None = None  # where the tags are, counted from 0; the last column unless given


class TokenHeadRecipe(Recipe):
    """What both tasks have; without `model.init` the vocabulary is learnt from the training texts."""

    model: ModelSection = ModelSection(name="bert")
    data: ReadTextsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece"})
    training: TextTrainingSection = TextTrainingSection()


class TagsRecipe(TokenHeadRecipe):
    """Everything the training of a tagger depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, F1)

    task: Literal["tags"]
    data: TaggedSection


class AnswersRecipe(TokenHeadRecipe):
    """Everything the training of a model that finds answers in texts depends on."""

    metrics: ClassVar = (LOSS, EXACT, F1)

    task: Literal["answers"]
