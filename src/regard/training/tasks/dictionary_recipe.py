"""The recipe of task `dictionary`."""

from __future__ import annotations

from typing import ClassVar, Literal

from regard.inference.pipelines.reading.base import is_built_in
from regard.training.recipe.base import Recipe
from regard.training.recipe.dictionary_sections import DictionaryTrainingSection, ReadSection
from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.model_section import ModelSection

MEASURED = (
    Metric("l0"),
    Metric("explained_variance", higher_is_better=True),
    Metric("loss_recovered", higher_is_better=True),
    Metric("loss_recovered_mean", higher_is_better=True),
    Metric("dead"),
)


class DictionaryRecipe(Recipe):
    """Everything the training of a dictionary of features depends on."""

    metrics: ClassVar = (LOSS, *MEASURED)
    no_init: ClassVar = "a dictionary begins with directions of the activations themselves"

    task: Literal["dictionary"]
    model: ModelSection = ModelSection(name="sparse_autoencoder")
    data: ReadSection
    training: DictionaryTrainingSection = DictionaryTrainingSection()

    @property
    def files(self) -> list[str]:
        """The model that is read, and the files that it reads."""
        named = [self.data.model, self.data.train, self.data.valid]
        return [path for path in named if path and not is_built_in(path) and not path.startswith("hf:")]
