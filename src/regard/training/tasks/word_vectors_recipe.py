"""The recipe of task `words`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic

from regard.config import Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.text_sections import PlainTextSection
from regard.training.recipe.training_sections import TextTrainingSection


class WordsSection(PlainTextSection):
    """[data] of word vectors."""

    subsample: Fraction = 1e-3  # words with a greater share of the text are thinned out; 0: none


class WordsTrainingSection(TextTrainingSection):
    """[training] of word vectors."""

    # sgd: plain gradient descent after every few words, as in word2vec's program; adamw: a step for every batch
    optimizer: Literal["sgd", "adamw"] = "adamw"

    @pydantic.model_validator(mode="after")
    def _check_optimizer(self) -> Self:
        unused = ("betas", "clip", "weight_decay", "precision")
        changed = [name for name in unused if getattr(self, name) != type(self).model_fields[name].default]
        if self.optimizer == "sgd" and changed:
            raise ConfigError(
                f"training.{changed[0]}: has no effect with training.optimizer = 'sgd'; leave it out, or choose 'adamw'"
            )
        if self.optimizer == "sgd" and self.on_nan == "skip":
            raise ConfigError("training.on_nan = 'skip': 'sgd' changes weights within a step; it can only 'stop'")
        return self


class WordsRecipe(Recipe):
    """Everything the training of word vectors depends on."""

    metrics: ClassVar = (LOSS,)
    no_init: ClassVar = "word vectors are learnt from scratch"

    task: Literal["words"]
    model: ModelSection = ModelSection(name="word2vec")
    data: WordsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "word", "size": 100_000, "min_frequency": 5})
    training: WordsTrainingSection = WordsTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.tokenizer.kind != "word":
            raise ConfigError(f"tokenizer.kind = {self.tokenizer.kind!r}: task 'words' learns vectors of whole words; "
                              "it must be 'word'")  # fmt: skip
        return self
