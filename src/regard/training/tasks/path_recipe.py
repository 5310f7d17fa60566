"""What recipes of paths share."""

from __future__ import annotations

from regard.data.tokenizers.training import VocabularyConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.model_section import ModelSection, WordsSection
from regard.training.recipe.path_sections import PathsSection
from regard.training.recipe.training_sections import ExampleTrainingSection


class PathRecipe(Recipe):
    """The sections of a recipe of instructions and paths."""

    model: ModelSection = ModelSection(name="vlnbert")
    words: WordsSection = WordsSection()
    data: PathsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece", "size": 3000, "lowercase": True})
    training: ExampleTrainingSection = ExampleTrainingSection(batch=64)

    @property
    def files(self) -> list[str]:
        """The paths of its data; built-in data have none."""
        return self.data.files
