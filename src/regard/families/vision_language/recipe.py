"""The recipes of the tasks on texts and regions: `vision_language`, `retrieval`, `pointing` and `questions`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from regard.config import Config, Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.families.vision_language.regions import FinderConfig
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import ScenesSection
from regard.training.recipe.files import SCENES
from regard.training.recipe.sections import ACCURACY, LOSS, ExampleTrainingSection, Metric, ModelSection, WordsSection


class RegionTextsSection(Config):
    """[data]: images and texts about them: `scenes`, or files of captions with their images beside them."""

    train: str
    valid: str = ""
    test: str = ""
    skip_bad: bool = False  # leave out images that cannot be read or have no caption, and count them
    scenes: ScenesSection = ScenesSection()
    image_size: int = Field(default=48, ge=16)  # pixels of a side of the scenes
    each: PositiveInt = 3  # phrases or questions about a scene
    larger_first: Fraction = 0.8  # share of the scenes whose questions about two shapes name the larger one first
    longest: int = Field(default=40, ge=8)  # tokens; longer texts are cut, and counted
    regions: FinderConfig = FinderConfig()

    @property
    def built_in(self) -> bool:
        """Whether the images are the built-in ones."""
        return self.train == SCENES

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no captions; give a file of captions, or {SCENES!r}")
        if self.built_in and (self.valid or self.test):
            raise ConfigError("the built-in scenes have parts of their own; size them with [data.scenes]")
        return self


class MaskedPairsSection(RegionTextsSection):
    """[data] of pre-training."""

    share: float = Field(default=0.15, gt=0, lt=1)  # of the words, to be predicted
    region_share: float = Field(default=0.15, gt=0, lt=1)  # of the regions


class RetrievalSection(RegionTextsSection):
    """[data] of retrieval."""

    choices: int = Field(default=4, ge=2)  # a right pair and wrong ones
    pool: int = Field(default=100, ge=2)  # images of which the right one is searched in validation


MATCH = Metric("match", higher_is_better=True)
RECALL = Metric("recall", higher_is_better=True)
WHOLE_WORDS = VocabularyConfig.parse({"kind": "word", "lowercase": True})


class RegionTextRecipe(Recipe):
    """What the recipes of texts and regions share."""

    metrics: ClassVar[tuple[Metric, ...]] = (LOSS, ACCURACY)

    model: ModelSection = ModelSection(name="vilbert", preset="tiny")
    words: WordsSection = WordsSection()
    data: RegionTextsSection
    tokenizer: VocabularyConfig = WHOLE_WORDS
    training: ExampleTrainingSection = ExampleTrainingSection()

    @model_validator(mode="after")
    def _check_words(self) -> Self:
        if self.words.init and self.model.init:
            raise ConfigError("model.init has words of its own; leave words.init out")
        return self


class VisionLanguageRecipe(RegionTextRecipe):
    """Everything the pre-training on images and captions depends on."""

    metrics: ClassVar = (LOSS, ACCURACY, MATCH)

    task: Literal["vision_language"]
    data: MaskedPairsSection


class RetrievalRecipe(RegionTextRecipe):
    """Everything that training to find images by captions, and captions by images, depends on."""

    metrics: ClassVar = (LOSS, RECALL)

    task: Literal["retrieval"]
    data: RetrievalSection


class SceneTextRecipe(RegionTextRecipe):
    """A recipe whose texts only the built-in scenes have."""

    @model_validator(mode="after")
    def _check_data(self) -> Self:
        if not self.data.built_in:
            raise ConfigError(f"task {self.task!r} needs texts with known answers, which only {SCENES!r} has")
        return self


class PointingRecipe(SceneTextRecipe):
    """Everything that training to find the region that a phrase means depends on."""

    task: Literal["pointing"]


class QuestionsRecipe(SceneTextRecipe):
    """Everything that training to answer questions about images depends on."""

    task: Literal["questions"]
