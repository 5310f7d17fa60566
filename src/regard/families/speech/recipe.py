"""The recipe of task `speech`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    field_validator,
    model_validator,
)

from regard.config import Config, Fraction
from regard.data.tokenizers.training import VocabularyConfig
from regard.errors import ConfigError
from regard.families.speech.ctc import JOINT
from regard.families.speech.features import LogMelConfig, SpecAugment
from regard.families.speech.manifest import SPEECH, is_built_in
from regard.search.settings import SearchSettings
from regard.training.recipe.base import Recipe
from regard.training.recipe.data_sections import PartCounts
from regard.training.recipe.sections import LOSS, ExampleTrainingSection, Metric, ModelSection


class JoinConfig(Config):
    """[data.join]: strings of recordings of one speaker, with pauses around each; `longest` = 0 joins nothing."""

    shortest: PositiveInt = 3  # recordings in a string
    longest: NonNegativeInt = 0
    shortest_pause: NonNegativeFloat = 0.02  # seconds
    longest_pause: NonNegativeFloat = 0.3
    count: PositiveInt = 4000  # strings of an epoch; every epoch has others
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 600
    # what validation and test hear: strings as in training, or every recording once, with a pause before and after it
    measured: Literal["strings", "recordings"] = "strings"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.longest and self.longest < self.shortest:
            raise ConfigError(f"longest = {self.longest}: must not be below shortest = {self.shortest}")
        if self.longest_pause < self.shortest_pause:
            raise ConfigError(f"longest_pause = {self.longest_pause}: must not be below shortest_pause")
        return self


class DrawnSpeechSection(PartCounts):
    """[data.drawn]: how many of the built-in utterances to draw, and how many digits each has."""

    count: PositiveInt = 4000
    valid_count: PositiveInt = 200
    test_count: PositiveInt = 200
    shortest: PositiveInt = 1
    longest: PositiveInt = 5


class SpeechSection(Config):
    """[data]: a manifest, a folder or an archive for each part, or `builtin:speech`."""

    train: str
    valid: str = ""
    test: str = ""
    split: Fraction = 0.1  # share of the training recordings for each of validation and test, where none are given
    held_out_speaker: str = ""  # test on all recordings of this speaker, and train on none of them
    speeds: tuple[PositiveFloat, ...] = (1.0,)  # copies of the training recordings, played slower and faster
    count: NonNegativeInt = 0  # learn from this many recordings, drawn by the seed; 0: all
    longest: float = Field(default=30.0, gt=0)  # seconds; longer recordings are refused, since they need much memory
    skip_bad: bool = False  # leave out recordings that cannot be read or whose text does not fit; they are counted
    join: JoinConfig = JoinConfig()
    drawn: DrawnSpeechSection = DrawnSpeechSection()

    @field_validator("train")
    @classmethod
    def _name_built_in(cls, train: str) -> str:
        return SPEECH if is_built_in(train) else train

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.train:
            raise ConfigError(f"data.train names no recordings; give a manifest or a folder of them, or {SPEECH!r}")
        if self.train == SPEECH and (self.valid or self.test or self.held_out_speaker):
            raise ConfigError("the built-in speech has parts of its own; size them with [data.drawn]")
        if self.held_out_speaker and self.test:
            raise ConfigError("data.test and data.held_out_speaker both say what to test on; leave one out")
        if 1.0 not in self.speeds:
            raise ConfigError(f"data.speeds = {list(self.speeds)}: must contain 1, the speed of all other parts")
        return self


WER = Metric("wer")  # errors for each word of the reference, of normalised text
SENTENCES = Metric("sentence_errors")  # share of utterances that are not exactly right, of normalised text
BLANKS = Metric("blanks")  # share of frames whose best label is the blank


class SpeechTrainingSection(ExampleTrainingSection):
    """[training] of speech recognition; `batch` counts utterances."""

    lengths_vary: ClassVar[bool] = True

    ctc_weight: float = Field(default=JOINT, ge=0, le=1)  # of the labels of frames, beside a decoder
    label_smoothing: Fraction = 0.1  # of the decoder
    validate_utterances: NonNegativeInt = 200  # how many are transcribed at each validation; 0 measures the loss alone
    graphs: bool = False  # a captured step uses our own CTC loss (training/ctc.py); its speed on a GPU is not measured

    @property
    def shapes_recur(self) -> bool:
        """With graphs, the lengths of labels are rounded too, so there are few shapes."""
        return self.graphs


class SpeechRecipe(Recipe):
    """Everything the training of a speech recogniser depends on."""

    metrics: ClassVar = (LOSS, WER, SENTENCES, BLANKS)

    task: Literal["speech"]
    model: ModelSection = ModelSection(name="conformer")
    data: SpeechSection
    audio: LogMelConfig = LogMelConfig()
    tokenizer: VocabularyConfig = VocabularyConfig.parse({"kind": "character", "size": 64, "min_frequency": 1})
    augmentation: SpecAugment = SpecAugment()
    training: SpeechTrainingSection = SpeechTrainingSection()
    decoding: SearchSettings = SearchSettings()

    @model_validator(mode="after")
    def _check(self) -> Self:
        metric = self.training.metric
        if metric in (WER.name, SENTENCES.name) and not self.training.validate_utterances:
            raise ConfigError(f"training.metric is {metric!r}, which needs training.validate_utterances above 0")
        if (self.audio.log, self.audio.padding) != ("natural", "zeros"):
            raise ConfigError(
                "audio.log and audio.padding: training pads batches, which only 'natural' and 'zeros' allow"
            )
        if not self.model.init:
            bands = getattr(self.model.config(source_vocab=8, target_vocab=8, pad=0), "bands", self.audio.mels)
            if bands != self.audio.mels:
                raise ConfigError(f"audio.mels = {self.audio.mels}: must be model.bands = {bands}")
        return self
