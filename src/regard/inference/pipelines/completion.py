"""The result of generating text for a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from torch import Tensor

from regard.data.tokenizers.unknown_words import UnknownWord
from regard.errors import UsageError

if TYPE_CHECKING:
    from regard.inference.pipelines.text_generator import TextGenerator

Reason = Literal["", "stop", "length"]  # not ended yet; ended by itself or by a stop string; cut by the limit
BROKEN = "\ufffd"  # what the first bytes of an unfinished character decode to


class Chunk(NamedTuple):
    """The next piece of a text in progress; the last one says why the text ended, and has the whole."""

    text: str
    reason: Reason = ""
    whole: Completion | None = None


@dataclass(frozen=True)
class Attention:
    """Attention of a prompt and its answer, by layer. A language model has one sequence for both (`target`)."""

    source: list[str]
    target: list[str]
    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]


@dataclass(frozen=True)
class Completion:
    """The answer to a prompt. Attention and probabilities are computed when asked for, by a forced pass."""

    prompt: str
    text: str
    score: float  # mean log-probability of its tokens, unless another length penalty was asked for
    log_probability: float
    reason: Reason
    ids: list[int] = field(repr=False)
    prompt_ids: list[int] = field(repr=False)
    alternatives: list[Completion] = field(default_factory=list)
    generator: TextGenerator | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> list[str]:
        """The answer's tokens, as they are displayed."""
        return self._generator.tokenizer.pieces(self.ids)

    @cached_property
    def unknown(self) -> list[UnknownWord]:
        """The words of the prompt that the model does not know."""
        return self._generator.unknown_words(self.prompt)

    @cached_property
    def attention(self) -> Attention:
        """The attention of every layer and head."""
        return self._generator.attention(self.prompt_ids, self.ids)

    @cached_property
    def log_probabilities(self) -> Float[Tensor, "T V"]:
        """The log-probability of every token at each place of the answer."""
        return self._generator.log_probabilities(self.prompt_ids, self.ids)

    @property
    def _generator(self) -> TextGenerator:
        assert self.generator is not None
        return self.generator


def stop_strings(stop: str | Sequence[str]) -> list[str]:
    """Stop strings as a list; refuses an empty one."""
    stops = [stop] if isinstance(stop, str) else list(stop)
    if "" in stops:
        raise UsageError("a stop string is empty; it would end every text before its first word")
    return stops


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """A text up to the first stop string in it."""
    places = [place for place in (text.find(each) for each in stops) if place >= 0]
    return text[: min(places)] if places else text


def final_text(text: str, stops: Sequence[str]) -> str:
    """The part of a text in progress that cannot change any more: no unfinished character, no stop string, and no
    beginning of one at its end."""
    for each in stops:
        text = text.partition(each)[0]
    text = text.rstrip(BROKEN)
    held = (n for each in stops for n in range(1, len(each)) if text.endswith(each[:n]))
    return text[: len(text) - max(held, default=0)]
