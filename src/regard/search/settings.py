"""The search settings of a model folder: the [decoding] section of its recipe, or the files of Hugging Face."""

from __future__ import annotations

import json
import tomllib
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from regard.config import Config
from regard.errors import ConfigError

MAX_BEAM = 1024  # hypotheses of a sentence
NEVER = -1e4  # added to the logit of a token that says nothing


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
    end_at_limit: bool = False  # `max_length` and `longest` count an end token that cut answers get for nothing
    ended_first: bool = True  # beam search: answers that ended go before those that `max_length` or `longest` cut
    early_stopping: bool = False  # beam search: a sentence is done as soon as `beam` answers have ended
    first_token: NonNegativeInt | None = None  # begins every answer, and costs nothing
    min_length: NonNegativeInt = 0
    no_repeat_ngram: NonNegativeInt = 0  # never repeat n tokens in a row; 0 allows it
    avoid_loops: bool = False  # translators: search again where an answer says a word or phrase over and over
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
    def _check_sizes(self) -> SearchSettings:
        if not self.sample and self.n_best > MAX_BEAM:
            raise ConfigError(f"n_best = {self.n_best}: a search finds {MAX_BEAM} answers at most; sample more of them")
        if self.max_length is not None and self.min_length > self.max_length:
            raise ConfigError(f"min_length = {self.min_length}: should be at most max_length = {self.max_length}")
        return self

    def without(self, token: int | None) -> SearchSettings:
        """The same, where a token is as good as never written unless a bias for it is given."""
        return self if token is None else self.replace(logit_bias={token: NEVER, **self.logit_bias})

    def limit(self, source_length: int) -> int:
        """The most tokens of an answer to a source of this length."""
        usual = int(self.max_ratio * source_length) + self.max_extra
        most = self.most or usual
        most = most if self.max_length else min(usual, most)
        return most if self.context is None else max(1, min(most, self.context - source_length + 1))

    @property
    def most(self) -> int | None:
        """The most tokens of an answer, whatever its source; None if only the source decides."""
        most = self.max_length or self.longest
        return max(most - 1, 1) if most and self.end_at_limit else most

    @property
    def widens(self) -> bool:
        """Whether more answers are asked for than the beam is wide, so that a wider search must find the others."""
        return not self.sample and self.n_best > self.beam

    @property
    def width(self) -> int:
        """The number of hypotheses of a sentence."""
        return 1 if self.sample else max(self.beam, self.n_best)


NO_TOKEN = -1  # in place of a special token that a model does not have


class Vocabulary(NamedTuple):
    """The ids of the tokens that a search must know."""

    start: int
    end: int
    pad: int
    blank: frozenset[int] | None = None  # tokens that alone show nothing; None if an answer may say nothing

    @property
    def forbidden(self) -> list[int]:
        """The tokens that no answer may contain."""
        return [token for token in {self.start, self.pad} if token != self.end]


RECIPE, CONFIG, GENERATION = "recipe.toml", "config.json", "generation_config.json"
HONOURED = {  # Hugging Face's name -> ours
    "num_beams": "beam", "length_penalty": "length_penalty", "no_repeat_ngram_size": "no_repeat_ngram",
    "repetition_penalty": "repetition_penalty", "do_sample": "sample", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "min_p": "min_p", "max_new_tokens": "longest", "min_new_tokens": "min_length",
    "early_stopping": "early_stopping", "forced_bos_token_id": "first_token",
}  # fmt: skip
WITH_START = {"max_length": "longest", "min_length": "min_length"}  # these count the token that begins an answer
NOT_SUPPORTED: dict[str, tuple[Any, ...]] = {  # keys that would change answers, and the values that change nothing
    "num_beam_groups": (1,), "diversity_penalty": (0,), "encoder_no_repeat_ngram_size": (0,), "typical_p": (1,),
    "encoder_repetition_penalty": (1,), "epsilon_cutoff": (0,), "eta_cutoff": (0,), "penalty_alpha": (0,),
    "guidance_scale": (1,), "force_words_ids": (), "constraints": (), "sequence_bias": (), "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],), "exponential_decay_length_penalty": (), "early_stopping": (False, True),
    "max_time": (), "top_h": (), "renormalize_logits": (False,), "watermarking_config": (), "dola_layers": (),
    "token_healing": (False,), "stop_strings": ([],),
}  # fmt: skip


class Decoding(NamedTuple):
    """The settings of a search, and the tokens that end an answer, where the folder names them."""

    settings: SearchSettings
    ends: list[int]


def read_decoding(folder: Path, *, answers: bool = True, followed: Collection[str] = ()) -> Decoding:
    """The default search settings of a model folder; greedy if the folder does not say.

    `answers` is False for a model that continues its prompt, which Hugging Face's limits of length count too.
    `followed` are settings of theirs that the pipeline follows by itself.
    """
    if (folder / RECIPE).is_file():
        values = tomllib.loads((folder / RECIPE).read_text("utf-8")).get("decoding", {})
        return Decoding(SearchSettings.parse(values, where=str(folder / RECIPE)), [])
    theirs: dict[str, Any] = {}
    for name in (CONFIG, GENERATION):  # older folders have all settings in config.json
        content = json.loads((folder / name).read_text("utf-8")) if (folder / name).is_file() else {}
        if name == GENERATION or "model_type" in content:  # the config of a Regard model has no decoding settings
            theirs |= {key: value for key, value in content.items() if value is not None}
    _tell_unsupported({key: value for key, value in theirs.items() if key not in followed}, folder, answers)
    settings = SearchSettings.parse(_ours(theirs, answers), where=str(folder / GENERATION))
    return Decoding(settings, _ids(theirs, "eos_token_id"))


def their_settings(settings: SearchSettings) -> dict[str, Any]:
    """Settings under Hugging Face's names: those that differ from the defaults, and the beam."""
    ours, usual = settings.model_dump(), SearchSettings().model_dump()
    found = {their: ours[our] for their, our in HONOURED.items() if our == "beam" or ours[our] != usual[our]}
    return found if settings.max_length is None else found | {"max_new_tokens": settings.max_length}


def _ours(theirs: Mapping[str, Any], answers: bool) -> dict[str, Any]:
    ours = {our: theirs[their] for their, our in HONOURED.items() if their in theirs}
    if answers:
        counted = {our: max(0, theirs[their] - 1) for their, our in WITH_START.items() if their in theirs}
        ours = {key: value for key, value in counted.items() if value} | ours
    else:
        ours.pop("first_token", None)
        if "max_length" in theirs and "longest" not in ours:
            ours["context"] = max(1, theirs["max_length"] - 1)  # the last token of an answer is not read
    if theirs:
        ours["ended_first"] = False
    if _forced_ends(theirs):
        ours["end_at_limit"] = True
    if ours.get("early_stopping") == "never":
        del ours["early_stopping"]
    if ours.get("temperature", 1) <= 0 or _draws_within_a_beam(theirs):
        ours |= {"sample": False, "temperature": 1.0}
    return ours


def _ids(theirs: Mapping[str, Any], key: str) -> list[int]:
    ids = theirs.get(key, [])
    return [ids] if isinstance(ids, int) else list(ids)


def _forced_ends(theirs: Mapping[str, Any]) -> bool:
    """Whether an answer that reaches its limit is given an end token."""
    return not {*_ids(theirs, "forced_eos_token_id")}.isdisjoint(_ids(theirs, "eos_token_id"))


def _draws_within_a_beam(theirs: Mapping[str, Any]) -> bool:
    return bool(theirs.get("do_sample")) and theirs.get("num_beams", 1) > 1


def _tell_unsupported(theirs: Mapping[str, Any], folder: Path, answers: bool) -> None:
    asked = [key for key, neutral in NOT_SUPPORTED.items() if key in theirs and theirs[key] not in neutral]
    unsaid = [[theirs.get("pad_token_id")], [theirs.get("decoder_start_token_id")]]  # never generated here either
    if any(words not in unsaid for words in theirs.get("bad_words_ids") or []):
        asked.append("bad_words_ids")
    if _draws_within_a_beam(theirs):
        asked.append("do_sample with num_beams")
    if _ids(theirs, "forced_eos_token_id") and not _forced_ends(theirs):
        asked.append("a forced_eos_token_id that is no eos_token_id")
    if "forced_bos_token_id" in theirs and not answers:
        asked.append("forced_bos_token_id")
    if asked:
        warnings.warn(
            f"{folder} asks for {', '.join(asked)} when decoding, which Regard does not do: its answers may differ "
            "from those of transformers",
            stacklevel=2,
        )
