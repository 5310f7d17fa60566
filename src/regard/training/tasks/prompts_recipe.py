"""The recipe of task `prompts`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import PositiveInt

from regard.config import Config
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.inference.decoding.settings import SearchSettings
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import DECODED, LOSS, PERPLEXITY
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import AnswerTrainingSection


class PromptsSection(Config):
    """[data] of a model that answers prompts: tables of paths by the name of the task; `builtin:…` are generated."""

    train: dict[str, str]
    valid: dict[str, str] = pydantic.Field(default_factory=dict)
    test: dict[str, str] = pydantic.Field(default_factory=dict)
    prefixes: dict[str, str] = pydantic.Field(default_factory=dict)  # put before the texts of a task's files
    temperature: float = pydantic.Field(default=1.0, ge=1)  # tasks are drawn in proportion to their size ** (1 / this)
    count: PositiveInt = 20000  # training prompts of each built-in task
    held_out: PositiveInt = 200  # prompts of each for validation, and as many for testing
    max_words: PositiveInt = 8  # of the sentences that built-in prompts are made of

    @pydantic.model_validator(mode="after")
    def _check_tasks(self) -> Self:
        for key in ("valid", "test", "prefixes"):
            if extra := sorted(set(getattr(self, key)) - set(self.train)):
                raise ConfigError(f"data.{key} names the task {extra[0]!r}, but data.train has {', '.join(self.train)}")
        if not self.train:
            raise ConfigError("data.train names no task; write a table: name = path, or name = 'builtin:translate'")
        return self


class PromptsRecipe(Recipe):
    """Everything the training of one model for several tasks depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, *DECODED)

    task: Literal["prompts"]
    model: ModelSection = ModelSection(name="t5")
    data: PromptsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({})
    training: AnswerTrainingSection = AnswerTrainingSection()
    decoding: SearchSettings = SearchSettings()
