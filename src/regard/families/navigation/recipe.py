"""The recipes of the tasks `path_pairs` and `paths`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from regard.config import Config, Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.families.navigation.features import CandidateConfig
from regard.families.navigation.synthetic import HOUSES
from regard.training.recipe.base import Recipe
from regard.training.recipe.sections import (
    ACCURACY,
    LOSS,
    PERPLEXITY,
    ExampleTrainingSection,
    Metric,
    ModelSection,
    WordsSection,
)


class HousesSection(Config):
    """[data.houses]: how many of the built-in houses, how many routes in each, and more in those trained on."""

    count: PositiveInt = 40
    routes: PositiveInt = 30
    seen_routes: NonNegativeInt = 2


class PathsSection(Config):
    """[data]: Room-to-Room's paths and connectivity graphs, or `builtin:houses`."""

    train: str
    graphs: str = ""  # a folder or archive of connectivity files; empty: the one beside the paths
    seen: str = ""  # more paths in the houses trained on, for validation beside those in other houses
    held_out: PositiveInt = 6  # houses for validation, the same in every run
    tested: NonNegativeInt = 6  # houses for the test at the end
    longest: int = Field(default=80, ge=8)  # tokens; longer instructions are cut, and counted
    skip_bad: bool = False  # leave out, count and name paths that jump or are in no known house
    candidates: CandidateConfig = CandidateConfig()
    houses: HousesSection = HousesSection()

    @property
    def built_in(self) -> bool:
        """Whether the houses are the built-in ones."""
        return self.train == HOUSES

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no file of paths; give one, or {HOUSES!r}")
        if self.built_in and (self.graphs or self.seen):
            raise ConfigError("the built-in houses have graphs and parts of their own; size them with [data.houses]")
        return self


class PathRecipe(Recipe):
    """The sections of a recipe of instructions and paths."""

    model: ModelSection = ModelSection(name="vlnbert")
    words: WordsSection = WordsSection()
    data: PathsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "wordpiece", "size": 3000, "lowercase": True})
    training: ExampleTrainingSection = ExampleTrainingSection(batch=64)

    @property
    def files(self) -> list[str]:
        data = self.data
        return [] if data.built_in else [path for path in (data.train, data.graphs, data.seen) if path]


STEP_ERROR = Metric("step_error")  # mean squared error of the numbers of hidden steps
MATCH = Metric("match", higher_is_better=True)


class HiddenPairsSection(PathsSection):
    """[data] of a model that predicts hidden words and steps."""

    share: float = Field(default=0.15, gt=0, lt=1)  # of the words, to be predicted
    mismatched: Fraction = 0.25  # share of the paths that are exchanged for one that fails


class PathPairsRecipe(PathRecipe):
    """Everything the training on pairs of instruction and path depends on."""

    metrics: ClassVar = (LOSS, PERPLEXITY, ACCURACY, STEP_ERROR, MATCH)

    task: Literal["path_pairs"]
    data: HiddenPairsSection


SUCCESS = Metric("success", higher_is_better=True)
SPL = Metric("spl", higher_is_better=True)
ERROR = Metric("error")  # metres from the end of the path to the goal
SEEN = (Metric("seen_success", higher_is_better=True), Metric("seen_spl", higher_is_better=True), Metric("seen_error"))


class RankingSection(PathsSection):
    """[data] of a model that ranks paths."""

    failures: PositiveInt = 3  # candidates that fail, beside one that succeeds, in each training example
    mirror: bool = False  # half of the examples are mirrored, with "left" and "right" exchanged


class RankingRecipe(PathRecipe):
    """Everything the training of a model that ranks paths depends on."""

    metrics: ClassVar = (LOSS, SUCCESS, SPL, ERROR, *SEEN)

    task: Literal["paths"]
    data: RankingSection
