"""The recipe of task `folding`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import PositiveInt

from regard.training.recipe.base import Recipe
from regard.training.recipe.folding_sections import FoldingSection, LossesSection
from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.training_sections import ExampleTrainingSection

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
        """The paths of its data; built-in data have none."""
        return self.data.files
