"""Language models that continue a prompt, and T5s that answer one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.tokenizers.base import well_formed
from regard.errors import DataError, UsageError
from regard.families.language.generator import CONTEXT, TextGenerator
from regard.families.language.gpt import Gpt, GptConfig
from regard.families.language.lstm import Lstm, LstmConfig, State
from regard.families.language.t5 import T5, T5Config
from regard.look.predictions import TokenProbability
from regard.search.settings import NO_TOKEN, Vocabulary

PIECE = 512  # tokens of a text that a recurrent model reads at once


@dataclass(frozen=True)
class Perplexity:
    """The perplexity of a text: its log-probability, per token, word or byte."""

    log_probability: float
    tokens: int
    words: int
    bytes: int
    unknown: int = 0  # unknown tokens: the model predicts these too easily, so the perplexity is too low

    @property
    def per_token(self) -> float:
        return math.exp(-self.log_probability / self.tokens)

    @property
    def per_word(self) -> float:
        """Comparable between tokenizers, as `per_byte` is."""
        return math.exp(-self.log_probability / max(self.words, 1))

    @property
    def per_byte(self) -> float:
        return math.exp(-self.log_probability / self.bytes)

    @property
    def bits_per_byte(self) -> float:
        return -self.log_probability / self.bytes / math.log(2)


class LanguageModel(TextGenerator):
    """A GPT, or a recurrent language model, with its tokenizer."""

    pipeline: ClassVar[str] = "language_model"

    model_classes, samples, continues = (Gpt, Lstm), True, True
    model: Gpt | Lstm

    def read(self, prompt: str) -> list[int]:
        """The prompt's tokens, at least one: an empty prompt becomes the token that starts a text."""
        (found,) = self.tokenizer.encode([prompt])
        ids = list(found.ids)
        while ids and ids[-1] == self.tokenizer.end:  # some tokenizers append an end token, but the text must continue
            ids.pop()
        if not ids:
            opening = self.tokenizer.start if self.tokenizer.start is not None else self.tokenizer.end
            if opening is None:
                raise DataError("the prompt is empty, and this model has no token for the start of a text; say a word")
            ids = [opening]
        if self.context is not None and len(ids) > self.context:
            raise DataError(
                f"the prompt that begins with {prompt[:40]!r} has {len(ids)} tokens; this model reads {self.context} "
                "at most, the answer included; shorten it"
            )
        return ids

    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        before = list(prompt_ids)[-CONTEXT:]
        return self.tokenizer.decode([*before, *ids])[len(self.tokenizer.decode(before)) :]

    @property
    def config(self) -> GptConfig | LstmConfig:
        return self.model.config

    @property
    def vocab(self) -> int:
        return self.config.vocab

    @property
    def context(self) -> int | None:
        """The most tokens of prompt and answer together; recurrent models and rotary positions have no limit."""
        config = self.config
        return config.max_length if isinstance(config, GptConfig) and config.positions == "learned" else None

    @property
    def vocabulary(self) -> Vocabulary:
        end = self.ends[0] if self.ends else NO_TOKEN
        start, pad = self.tokenizer.start, self.tokenizer.specials.get("pad")
        return Vocabulary(end if start is None else start, end, end if pad is None else pad)

    def forced_inputs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[list[int], list[int]]:
        return [], [*prompt_ids, *ids]

    def forced_logits(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "T V"]:
        return self.model(self._row(target))[0]

    def next_tokens(self, prompt: str, count: int = 10) -> list[TokenProbability]:
        """The most probable tokens after a prompt."""
        ids = self.read(prompt)
        return self.predict_tokens(ids, places=(len(ids) - 1, len(ids)), top=count)[0].choices

    @torch.inference_mode()
    def perplexity(self, text: str, stride: int | None = None) -> Perplexity:
        """How well the model predicts a text: every token once, the first from the start token if there is one.

        A GPT reads windows that begin `stride` tokens apart (by default half a window), and predicts a token from all
        before it in its window. A recurrent model reads the text from the beginning to the end.
        """
        ids = self.opened(text)
        if len(ids) < 2:
            raise DataError("the text has no token to predict; give at least a word")
        if isinstance(self.model, Gpt):
            total = sum(self._windowed_log_probabilities(self.model, ids, stride))
        elif stride is None:
            total = sum(self._recurrent_log_probabilities(self.model, ids))
        else:
            raise UsageError(f"the stride is {stride}, but a recurrent model has no windows; leave it out")
        unknown = 0 if self.tokenizer.reads([text])[0] else sum(each == self.tokenizer.unknown for each in ids[1:])
        return Perplexity(total, len(ids) - 1, len(text.split()), len(well_formed(text).encode()), unknown)

    def _windowed_log_probabilities(self, model: Gpt, ids: Sequence[int], stride: int | None) -> Iterator[float]:
        """For each window, the log-probability of the tokens that the window before it did not have."""
        window = model.config.max_length
        stride = max(1, window // 2) if stride is None else stride
        if not 1 <= stride < max(window, 2):
            raise UsageError(f"the stride is {stride}; it must be at least 1 and below the window, {window}")
        known = 1
        for first in range(0, len(ids), stride):
            piece = ids[first : first + window]
            yield self._log_probability(model(self._row(piece[:-1]))[0], piece[1:], known - first - 1)
            known = first + len(piece)
            if known == len(ids):
                return

    def _recurrent_log_probabilities(self, model: Lstm, ids: Sequence[int]) -> Iterator[float]:
        """The log-probability of each piece of a text."""
        state: State | None = None
        for first in range(0, len(ids) - 1, PIECE):
            piece = ids[first : first + PIECE + 1]
            reading = model.read(self._row(piece[:-1]), state)
            state = reading.state
            yield self._log_probability(model.predict(reading.outputs)[0], piece[1:])

    def _log_probability(self, logits: Float[Tensor, "T V"], ids: Sequence[int], first: int = 0) -> float:
        """The summed log-probability of all tokens from `first` on."""
        each = logits[first:].float().log_softmax(dim=-1).gather(1, self._row(ids[first:]).T)
        return each.double().sum().item()

    def opened(self, text: str) -> list[int]:
        """The tokens of a text, after the start token."""
        (found,) = self.tokenizer.encode([text])
        start = self.tokenizer.start
        return found.ids if start is None or found.ids[:1] == [start] else [start, *found.ids]

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """Batches of prompts. One prompt per batch if rotary angles depend on the longest text of a batch."""
        if isinstance(self.model, Gpt) and self.model.grows:
            return ([number] for number in range(len(lengths)))
        return super()._batches(lengths)

    def _row(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], dtype=torch.long, device=self.device)


class TextToText(TextGenerator):
    """A T5 with its tokenizer: tasks are written at the beginning of the text, as in "summarize: …"."""

    pipeline: ClassVar[str] = "text_to_text"

    model_classes, samples, continues = (T5,), False, False
    model: T5

    def read(self, prompt: str) -> list[int]:
        """The prompt's tokens, followed by the end token."""
        (found,) = self.tokenizer.encode([prompt])
        ids, end = list(found.ids), self.vocabulary.end
        return ids if ids[-1:] == [end] or end == NO_TOKEN else [*ids, end]

    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    @property
    def config(self) -> T5Config:
        return self.model.config

    @property
    def vocab(self) -> int:
        return self.config.target_vocab

    @property
    def vocabulary(self) -> Vocabulary:
        """T5 begins its answers with the padding token."""
        return Vocabulary(self.config.pad, self.ends[0] if self.ends else NO_TOKEN, self.config.pad)

    def forced_inputs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[list[int], list[int]]:
        return list(prompt_ids), [self.config.pad, *ids]

    def forced_logits(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "T V"]:
        read, inputs = (torch.tensor([list(ids)], device=self.device) for ids in (source, target))
        return self.model(read, torch.ones_like(read, dtype=torch.bool), inputs)[0]
