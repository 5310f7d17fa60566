"""The recipe of task `folding`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from regard.config import Config, Fraction
from regard.errors import ConfigError
from regard.families.folding.structures import BUILT_IN
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import LOSS, ExampleTrainingSection, Metric, ModelSection


class ChainsSection(Config):
    """[data.chains]: how many of the built-in chains, and how long they are."""

    count: PositiveInt = 64
    shortest: PositiveInt = 24
    longest: PositiveInt = 64

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.shortest > self.longest:
            raise ConfigError(f"shortest = {self.shortest}: is more than longest = {self.longest}; lower it")
        return self


class FoldingSection(Config):
    """[data]: chains of known structure, or `builtin:chains`, and the alignments of their families."""

    train: str  # an NPZ archive of chains, a structure as mmCIF or PDB, or a folder of these
    alignments: str = ""  # JSON Lines of families, or a folder with CHAIN.a3m; empty: sequences alone
    longest: PositiveInt = 256  # residues; longer chains are left out, and counted
    count: NonNegativeInt = 0  # the first so many of the chains that are left; 0: all
    held_out: NonNegativeInt = 0  # chains for validation, the same in every run; 0: those trained on, to see the fit
    fold: NonNegativeInt = 0  # which group of held-out chains, for cross-validation
    crop: NonNegativeInt = 0  # residues of a training example; 0: whole chains
    rows: PositiveInt = 1  # of the alignment, drawn for each training example
    read_rows: NonNegativeInt = 0  # of the alignment, read by the trained model; 0: as many as in training
    hidden: Fraction = 0.15  # share of the letters of the rows that are to be predicted
    chains: ChainsSection = ChainsSection()

    @property
    def built_in(self) -> bool:
        """Whether the chains are the built-in ones."""
        return self.train == BUILT_IN

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no chains; give an archive, a structure, a folder, or {BUILT_IN!r}")
        if self.built_in and self.alignments:
            raise ConfigError("data.alignments: the built-in chains have no families; leave it out")
        if self.rows > 1 and not self.alignments:
            raise ConfigError(f"data.rows = {self.rows}: there are no alignments; name them with data.alignments")
        return self


class LossesSection(Config):
    """[losses]: how much each loss counts."""

    fape: NonNegativeFloat = 1.0  # frame-aligned point error of all passes of the structure module
    unclamped: Fraction = 0.1  # share of it whose errors are not clamped at 10 Å
    distances: NonNegativeFloat = 0.3
    hidden: NonNegativeFloat = 2.0
    confidence: NonNegativeFloat = 0.01


LDDT = Metric("lddt", higher_is_better=True)
PRECISION = Metric("precision", higher_is_better=True)  # of the L / 5 most probable long-range contacts
RMSD = Metric("rmsd")
CONFIDENCE = Metric("confidence", higher_is_better=True)  # the lDDT that the model expects


class FoldingTrainingSection(ExampleTrainingSection):
    """[training] of a model of structures; a batch is a number of chains."""

    batch: PositiveInt = 8
    metric: str = LDDT.name


class FoldingRecipe(Recipe):
    """Everything the training of a model of structures depends on."""

    metrics: ClassVar = (LOSS, LDDT, PRECISION, RMSD, CONFIDENCE)

    task: Literal["folding"]
    model: ModelSection = ModelSection(name="evoformer")
    data: FoldingSection
    losses: LossesSection = LossesSection()
    training: FoldingTrainingSection = FoldingTrainingSection()

    @property
    def lengths(self) -> tuple[int, int]:
        """The residues of the longest training example, and its rows."""
        longest = self.data.chains.longest if self.data.built_in else self.data.longest
        return min(longest, self.data.crop or longest), self.data.rows

    @property
    def files(self) -> list[str]:
        return [] if self.data.built_in else [path for path in (self.data.train, self.data.alignments) if path]
