"""The base of all recipes. A recipe is a TOML file and a validated object with everything a training run depends on."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import pydantic
import tomli_w

from regard.config import Config, Seed
from regard.data.sources import missing
from regard.data.tokenizers.pair import TokenizerConfig
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError, DataError
from regard.families.catalog import MODELS, models_for
from regard.training.recipe.files import data_files
from regard.training.recipe.sections import Metric, ModelSection, TrainingSection


class Recipe(Config):
    """The sections that the loop needs, common to all tasks. Each task adds its own sections in a subclass."""

    metrics: ClassVar[tuple[Metric, ...]]  # what the task measures at every validation
    no_init: ClassVar[str] = ""  # why training cannot start from a model folder; empty if it can

    task: str
    takes: str = ""  # how long training was measured to take, and where
    seed: Seed = 1
    model: ModelSection
    training: TrainingSection

    @pydantic.model_validator(mode="after")
    def _check_task(self) -> Self:
        if self.task not in MODELS[self.model.name].tasks:
            models = " or ".join(models_for(self.task))
            raise ConfigError(f"model.name is {self.model.name!r}, which cannot do task {self.task!r}; use {models}")
        measured = {metric.name for metric in self.metrics}
        if self.training.metric not in measured:
            raise ConfigError(
                f"training.metric is {self.training.metric!r}, which task {self.task!r} does not measure; "
                f"it measures {', '.join(sorted(measured))}"
            )
        return self

    @pydantic.model_validator(mode="after")
    def _check_init(self) -> Self:
        if self.model.init and self.no_init:
            raise ConfigError(
                f"model.init = {self.model.init!r}: is not for task {self.task!r}: {self.no_init}; leave it out"
            )
        if self.model.init and self.model.preset:
            raise ConfigError(
                f"model.preset = {self.model.preset!r}: the shape comes from model.init; set model.preset to ''"
            )
        return self

    @property
    def goal(self) -> Metric:
        """The metric that decides which checkpoint is best."""
        return next(metric for metric in self.metrics if metric.name == self.training.metric)

    @property
    def vocabulary(self) -> int:
        """The largest vocabulary that a new model may get; 0 if the vocabulary comes with the model."""
        tokenizer: TokenizerConfig | VocabularyConfig | None = getattr(self, "tokenizer", None)
        return 0 if self.model.init or tokenizer is None else tokenizer.size

    @property
    def lengths(self) -> tuple[int, int] | None:
        """The source and target length of a training example, for recipes that fix them; `regard plan` uses them."""
        return None

    @property
    def files(self) -> list[str]:
        """The paths of its data; built-in data have none."""
        data: dict[str, Any] = self.model_dump()["data"]
        return data_files(data)

    def refuse_missing(self) -> None:
        """Refuse to start if a file below the data root does not exist."""
        for path in self.files:
            if message := missing(path):
                raise DataError(message)

    def to_toml(self) -> str:
        """The recipe as a TOML document that `load_recipe` reads back unchanged."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True))

    def resolved(self) -> Self:
        """The recipe with the model's preset written out."""
        return type(self)(**{**dict(self), "model": self.model.resolved()})
