"""The recipe of task `classification`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt

from regard.config import Config
from regard.data.formats.labelled_tables import Table
from regard.errors import ConfigError
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import ACCURACY, LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import RDropTrainingSection

BINARY = (Metric("f1", higher_is_better=True), Metric("matthews", higher_is_better=True))  # of two labels
CORRELATIONS = (Metric("pearson", higher_is_better=True), Metric("spearman", higher_is_better=True))  # of values


class LabelledTextsSection(Config):
    """[data] of a classifier: tab-separated tables, as GLUE has them."""

    train: str
    valid: str = ""
    test: str = ""
    text: str | NonNegativeInt = "sentence"  # the column of the text: its name, or its number if there is no header
    pair: str | NonNegativeInt | None = None  # the column of a second text
    label: str | NonNegativeInt = "label"
    labels: tuple[str, ...] = ()  # the labels by number; none: the column holds values
    longest: int = pydantic.Field(default=128, ge=8)  # tokens; longer texts are cut, and counted

    @pydantic.model_validator(mode="after")
    def _check_labels(self) -> Self:
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            raise ConfigError(f"data.labels is {self.labels}; expected two or more different ones, or none for values")
        return self

    @property
    def table(self) -> Table:
        """How its tables are read."""
        return Table(self.text, self.pair, self.label, self.labels)


class ClassificationRecipe(Recipe):
    """Everything the fine-tuning of a classifier depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, *BINARY, *CORRELATIONS)

    task: Literal["classification"]
    model: ModelSection
    data: LabelledTextsSection
    training: RDropTrainingSection = RDropTrainingSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.model.init:
            raise ConfigError("model.init must be given: a model folder, or hf:owner/name, to fine-tune")
        labels, metric = self.data.labels, self.goal
        if metric in BINARY and len(labels) != 2:
            raise ConfigError(f"training.metric {metric.name!r} needs two labels, data.labels has {len(labels)}")
        if metric != LOSS and (metric in CORRELATIONS) == bool(labels):
            what = "labels" if labels else "values"
            raise ConfigError(f"training.metric {metric.name!r} does not fit data with {what}; see data.labels")
        return self
