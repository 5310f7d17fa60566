"""The recipe of task `masked`."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import ACCURACY, LOSS, PERPLEXITY
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.text_sections import TextBlocksSection
from regard.training.recipe.training_sections import TextTrainingSection


class MaskedSection(TextBlocksSection):
    """[data] of a model that predicts masked words."""

    block: int = pydantic.Field(default=128, ge=8)
    share: float = pydantic.Field(default=0.15, gt=0, lt=1)  # of the tokens, to be predicted
    whole_words: bool = False  # mask all tokens of a word together
    next_sentence: bool = True  # also predict whether two segments follow each other


class MaskedRecipe(Recipe):
    """Everything the training of a BERT from plain documents depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, ACCURACY)

    task: Literal["masked"]
    model: ModelSection = ModelSection(name="bert")
    data: MaskedSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece"})
    training: TextTrainingSection = TextTrainingSection()
