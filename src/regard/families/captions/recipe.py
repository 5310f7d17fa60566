"""The recipe of task `captioning`: where captioned images are, and how captions are learnt and measured."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveInt

from regard.config import Fraction
from regard.data.images.augmentation import Augmentation
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.search.settings import SearchSettings
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import (
    DescribedImagesSection,
    ScenesSection,
    refuse_mixing,
    refuse_two_validations,
)
from regard.training.recipe.files import SCENES
from regard.training.recipe.sections import (
    EXACT,
    LOSS,
    DrawsTrainingSection,
    ExampleTrainingSection,
    Metric,
    ModelSection,
)


class CaptionsSection(DescribedImagesSection):
    """[data] of captioned images: a file of captions for each part, or `scenes`."""

    count: ClassVar[int] = 0  # captioners learn from all images

    skip_bad: bool = False  # leave out damaged images, and images and captions without each other; they are counted
    scenes: ScenesSection = ScenesSection()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no captions; give a file of them, or {SCENES!r}")
        if self.built_in and (self.valid or self.test or self.split):
            raise ConfigError("the built-in scenes have parts of their own; size them with [data.scenes]")
        refuse_two_validations(self)
        return self


BLEU4 = Metric("bleu4", higher_is_better=True)
CIDER = Metric("cider", higher_is_better=True)
DECODED = (BLEU4, CIDER, EXACT)  # measured on decoded captions


class CaptioningTrainingSection(ExampleTrainingSection, DrawsTrainingSection):
    """[training] of captioners; `batch` counts images."""

    lengths_vary: ClassVar[bool] = True

    captions: PositiveInt = 1  # of an image in a batch
    round_lengths: PositiveInt = 8  # pad captions to a multiple of this many words: fewer shapes, more padding
    label_smoothing: Fraction = 0.0
    coverage: NonNegativeFloat = 0.0  # λ of the doubly stochastic penalty, of recurrent decoders with attention
    validate_images: NonNegativeInt = 200  # how many get captions at each validation; 0 measures the loss alone

    @property
    def shapes_recur(self) -> bool:
        """Lengths are rounded, so there are few."""
        return True

    @pydantic.model_validator(mode="after")
    def _check_decoded(self) -> Self:
        if self.metric in [metric.name for metric in DECODED] and not self.validate_images:
            raise ConfigError(f"training.metric is {self.metric!r}, which needs training.validate_images above 0")
        return self


class CaptioningRecipe(Recipe):
    """Everything the training of a captioner depends on."""

    metrics: ClassVar = (LOSS, *DECODED)

    task: Literal["captioning"]
    model: ModelSection = ModelSection(name="captioner")
    data: CaptionsSection
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "word"})
    augmentation: Augmentation = Augmentation()
    training: CaptioningTrainingSection = CaptioningTrainingSection()
    decoding: SearchSettings = SearchSettings(max_length=40)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse_mixing(self.task, self.augmentation)
        if self.data.built_in and self.augmentation.flip:
            raise ConfigError("augmentation.flip mirrors images, but scenes have a left and a right; set it to 0")
        return self
