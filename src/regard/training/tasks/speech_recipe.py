"""The recipe of task `speech`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import pydantic
from pydantic import Field, NonNegativeInt

from regard.config import Fraction
from regard.data.audio.features import LogMelConfig
from regard.data.speech.augmentation import SpecAugment
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.inference.decoding.settings import SearchSettings
from regard.training.recipe.base import Recipe
from regard.training.recipe.metrics import LOSS, Metric
from regard.training.recipe.model_section import ModelSection
from regard.training.recipe.speech_sections import SpeechSection
from regard.training.recipe.training_sections import ExampleTrainingSection

WER = Metric("wer")  # errors for each word of the reference, of normalised text (training/evaluation/error_rates.py)
SENTENCES = Metric("sentence_errors")  # share of utterances that are not exactly right, of normalised text
BLANKS = Metric("blanks")  # share of frames whose best label is the blank
HEARD = (WER, SENTENCES)


class SpeechTrainingSection(ExampleTrainingSection):
    """[training] of speech recognition; `batch` counts utterances."""

    lengths_vary: ClassVar[bool] = True

    ctc_weight: float = Field(default=0.3, ge=0, le=1)  # of the labels of frames, beside a decoder
    label_smoothing: Fraction = 0.1  # of the decoder
    validate_utterances: NonNegativeInt = 200  # how many are transcribed at each validation; 0 measures the loss alone

    graphs: bool = (
        False  # a captured step uses our own CTC loss (training/ctc.py), whose speed on a GPU is not measured
    )

    @property
    def shapes_recur(self) -> bool:
        """With graphs, labels are rounded too (data/speech/batches.py), so there are few shapes."""
        return self.graphs


class SpeechRecipe(Recipe):
    """Everything the training of a speech recogniser depends on."""

    metrics: ClassVar = (LOSS, *HEARD, BLANKS)

    task: Literal["speech"]
    model: ModelSection = ModelSection(name="conformer")
    data: SpeechSection
    audio: LogMelConfig = LogMelConfig()
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "character", "size": 64, "min_frequency": 1})
    augmentation: SpecAugment = SpecAugment()
    training: SpeechTrainingSection = SpeechTrainingSection()
    decoding: SearchSettings = SearchSettings()

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.training.metric in [metric.name for metric in HEARD] and not self.training.validate_utterances:
            raise ConfigError(
                f"training.metric is {self.training.metric!r}, which needs training.validate_utterances above 0"
            )
        if self.audio.log != "natural" or self.audio.padding != "zeros":
            raise ConfigError(
                "audio.log and audio.padding: training pads batches, which only 'natural' and 'zeros' allow"
            )
        if not self.model.init:
            bands = getattr(self.model.config(source_vocab=8, target_vocab=8, pad=0), "bands", self.audio.mels)
            if bands != self.audio.mels:
                raise ConfigError(f"audio.mels = {self.audio.mels}: must be model.bands = {bands}")
        return self
