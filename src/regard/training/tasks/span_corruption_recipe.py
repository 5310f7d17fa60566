"""The recipe of task `spans`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic
from pydantic import PositiveInt

from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS, PERPLEXITY
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.text_sections import TextBlocksSection
from regard.training.recipe.training_sections import AnswerTrainingSection


class SpansSection(TextBlocksSection):
    """[data] of a model that restores the spans cut out of a text."""

    block: int = pydantic.Field(default=128, ge=8)
    density: float = pydantic.Field(default=0.15, gt=0, lt=1)  # the share of tokens that is cut out
    span: float = pydantic.Field(default=3.0, ge=1)  # mean tokens of a span
    sentinels: PositiveInt = 100  # tokens that stand for spans, in a vocabulary learnt by this run


class SpansRecipe(Recipe):
    """Everything the training of a T5 from plain text depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY)

    task: Literal["spans"]
    model: ModelSection = ModelSection(name="t5")
    data: SpansSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: AnswerTrainingSection = AnswerTrainingSection()
