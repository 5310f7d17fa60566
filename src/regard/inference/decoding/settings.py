"""How to decode: the settings of a search, and the special tokens that it must know."""

from typing import NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from regard.config import Config
from regard.errors import ConfigError

MAX_BEAM = 1024  # hypotheses of a sentence


class SearchSettings(Config):
    """How to decode: sampling if `sample` is set, else beam search, which is greedy with `beam = 1`."""

    beam: int = Field(default=1, ge=1, le=MAX_BEAM)
    n_best: PositiveInt = 1
    length_penalty: float = Field(default=1.0, ge=-10, le=10)
    max_length: PositiveInt | None = None  # None: `max_ratio` times the source length plus `max_extra`
    max_ratio: float = Field(default=2.0, ge=0, le=1000)
    max_extra: NonNegativeInt = 20
    longest: PositiveInt | None = None  # most tokens of an answer if `max_length` is not given
    context: PositiveInt | None = None  # most tokens of prompt and answer together, for language models
    min_length: NonNegativeInt = 0
    no_repeat_ngram: NonNegativeInt = 0  # never repeat n tokens in a row; 0 allows it
    repetition_penalty: PositiveFloat = 1.0  # above 1: tokens of the answer or the prompt become less probable
    presence_penalty: float = 0.0  # subtracted from the logits of tokens that the answer contains
    frequency_penalty: float = 0.0  # subtracted once for each time that the answer contains the token
    logit_bias: dict[NonNegativeInt, float] = Field(default_factory=dict)  # added to the logits of these tokens
    sample: bool = False
    temperature: PositiveFloat = 1.0
    top_k: NonNegativeInt = 0  # draw from the k most probable tokens only; 0: from all
    top_p: float = Field(default=1.0, gt=0, le=1)  # draw from the smallest set of tokens with this much probability
    min_p: float = Field(default=0.0, ge=0, le=1)  # draw from tokens of at least this share of the best probability
    seed: int = Field(default=0, ge=-(2**63), lt=2**63)

    @model_validator(mode="after")
    def _check_sizes(self) -> "SearchSettings":
        if not self.sample and self.n_best > MAX_BEAM:
            raise ConfigError(f"n_best = {self.n_best}: a search finds {MAX_BEAM} answers at most; sample more of them")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ConfigError(f"min_length = {self.min_length}: should be at most max_length = {self.max_length}")
        return self

    def limit(self, source_length: int) -> int:
        """The most tokens of an answer to a source of this length."""
        usual = int(self.max_ratio * source_length) + self.max_extra
        most = self.max_length or min(usual, self.longest or usual)
        return most if self.context is None else min(most, self.context - source_length + 1)

    @property
    def widens(self) -> bool:
        """Whether more answers are asked for than the beam is wide, so that a wider search must find the others."""
        return not self.sample and self.n_best > self.beam

    @property
    def width(self) -> int:
        """The number of hypotheses of a sentence."""
        return 1 if self.sample else max(self.beam, self.n_best)


class Vocabulary(NamedTuple):
    """The ids of the special tokens that a search must know."""

    start: int
    end: int
    pad: int

    @property
    def forbidden(self) -> list[int]:
        """The tokens that no answer may contain."""
        return [token for token in {self.start, self.pad} if token != self.end]
