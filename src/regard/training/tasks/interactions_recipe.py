"""The recipe of task `interactions`."""

from __future__ import annotations

from typing import ClassVar, Literal

from regard.training.recipe.base import Recipe
from regard.training.recipe.interaction_sections import InteractionsSection, InteractionTrainingSection
from regard.training.recipe.metrics import ACCURACY, LOSS, Metric
from regard.training.recipe.model_section import ModelSection

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
        """The tables of its data."""
        return [path for path in (self.data.train, self.data.sequences) if path]
