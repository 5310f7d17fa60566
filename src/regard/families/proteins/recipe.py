"""The recipe of task `interactions`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeInt, PositiveInt

from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.families.proteins.data import Split
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import ACCURACY, LOSS, ExampleTrainingSection, Metric, ModelSection


class InteractionsSection(Config):
    """[data]: a table of pairs, and the sequences of their proteins."""

    train: str
    sequences: str = ""  # a table (protein TAB sequence) or FASTA; empty: the file beside the pairs
    split: Split = "pairs"  # what is held out: pairs of any proteins, or all pairs of some proteins
    held_out: Fraction = 0.1  # share of the pairs, or of the proteins, for validation; the same in every run
    tested: Fraction = 0.1  # the same for the test at the end
    longest: NonNegativeInt = 2000  # residues that training reads of a longer protein, a random window; 0: all
    hidden: Fraction = 0.1  # share of the residues that training hides
    skip_bad: bool = False  # leave out, count and name pairs whose protein has no sequence

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.held_out + self.tested >= 1:
            raise ConfigError(
                f"data.held_out = {self.held_out} and data.tested = {self.tested} leave nothing to train on; lower them"
            )
        return self


class InteractionTrainingSection(ExampleTrainingSection):
    """[training] of a model of pairs of proteins, whose lengths differ."""

    lengths_vary: ClassVar[bool] = True

    batch: PositiveInt = 64
    metric: str = "accuracy"


MEASURED = tuple(Metric(name, higher_is_better=True) for name in ("precision", "recall", "f1", "auc"))


class InteractionsRecipe(Recipe):
    """Everything the training of a model of pairs of proteins depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, *MEASURED)
    no_init: ClassVar = "a model of pairs of proteins begins with random weights"

    task: Literal["interactions"]
    model: ModelSection = ModelSection(name="interactor")
    data: InteractionsSection
    training: InteractionTrainingSection = InteractionTrainingSection()

    @property
    def files(self) -> list[str]:
        return [path for path in (self.data.train, self.data.sequences) if path]
