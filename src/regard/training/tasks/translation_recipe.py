"""The recipe of task `translation`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, PositiveInt

from regard.config import Fraction
from regard.data.tokenizers.pair import TokenizerConfig
from regard.errors import ConfigError
from regard.inference.decoding.settings import SearchSettings
from regard.models.seq2seq import draws
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import DECODED, LOSS, PERPLEXITY
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.text_sections import PairsSection
from regard.training.recipe.training_sections import AnswerTrainingSection, DrawsTrainingSection, RDropTrainingSection


class TranslationTrainingSection(AnswerTrainingSection, RDropTrainingSection, DrawsTrainingSection):
    """[training] of translators."""

    label_smoothing: Fraction = 0.1
    guide: NonNegativeFloat = 0.0  # weight of the loss that teaches attention the alignments found by statistics
    round_lengths: PositiveInt = 1  # pad sentences to a multiple of this many tokens: fewer shapes, more padding

    @property
    def shapes_recur(self) -> bool:
        """Only if lengths are rounded. Recording attention for the guide cannot be captured."""
        return self.round_lengths > 1 and not self.guide

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.guide and self.compile:
            raise ConfigError("training.guide watches the attention, which a compiled model hides; set one of them off")
        return self


class TranslationRecipe(Recipe):
    """Everything the training of a translator depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, *DECODED)
    no_init: ClassVar = "a translator begins with random weights"

    task: Literal["translation"] = "translation"
    model: ModelSection = ModelSection()
    data: PairsSection
    tokenizer: TokenizerConfig = TokenizerConfig.parse({})
    training: TranslationTrainingSection = TranslationTrainingSection()
    decoding: SearchSettings = SearchSettings()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        config = self.model.config(source_vocab=8, target_vocab=8, pad=0)
        if getattr(config, "tie", "") == "all" and not self.tokenizer.joint:
            raise ConfigError("model.tie = 'all': shares one embedding, which needs tokenizer.joint = true")
        if self.training.r_drop and draws(config):
            raise ConfigError("training.r_drop compares two passes, which draw different places; set it to 0")
        if self.training.guide and self.tokenizer.dropout:
            raise ConfigError(
                "training.guide links the tokens of one segmentation, which tokenizer.dropout changes all the time; "
                "set one of them to 0"
            )
        return self
