"""Text in, more text out: what language models, which continue a prompt, and T5s, which answer one, have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import record
from regard.checkpoints import load_model
from regard.data.arguments import all_texts
from regard.data.batch import pad_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words
from regard.device import find_device
from regard.errors import CheckpointError, UsageError
from regard.inference.decoding.cuda_graphs import captured
from regard.inference.decoding.folder_settings import read_decoding
from regard.inference.decoding.search import Hypothesis, Search, SearchSettings, Steps, Stop, Vocabulary, search
from regard.inference.decoding.speculative import running_form
from regard.inference.insight.forced_pass import require_attention
from regard.inference.insight.predictions import TOP, Foretold, check_top, foretell
from regard.inference.pipelines.translator import batches_by_length

Kind = TypeVar("Kind", bound="Writer")
Reason = Literal["", "stop", "length"]  # not ended yet; by itself or a stop string; by the limit
MAX_TOKENS = 128
BROKEN = "\ufffd"  # what the first bytes of an unfinished character decode to
CONTEXT = 8  # tokens before a piece of text that decide how it is written: whether a space comes first


class Chunk(NamedTuple):
    """The next piece of a text in the making; the last one says why it ended, and has the whole."""

    text: str
    reason: Reason = ""
    whole: Completion | None = None


@dataclass(frozen=True)
class Attention:
    """Where the tokens of a prompt and an answer looked, by layer; a language model has one row of both (`target`)."""

    source: list[str]
    target: list[str]
    weights: dict[str, Float[np.ndarray, "H Tq Tk"]]


@dataclass(frozen=True)
class Completion:
    """What a model wrote for a prompt. Attention and probabilities are computed when asked for, by a forced pass."""

    prompt: str
    text: str
    score: float  # mean log-probability of its tokens, unless another length penalty was asked for
    log_probability: float
    reason: Reason
    ids: list[int] = field(repr=False)
    prompt_ids: list[int] = field(repr=False)
    alternatives: list[Completion] = field(default_factory=list)
    writer: Writer | None = field(default=None, repr=False, compare=False)

    @property
    def tokens(self) -> list[str]:
        """The answer's tokens, as they are displayed."""
        return self._writer.tokenizer.pieces(self.ids)

    @cached_property
    def unknown(self) -> list[UnknownWord]:
        """The words of the prompt that the model does not know."""
        return self._writer.unknown_words(self.prompt)

    @cached_property
    def attention(self) -> Attention:
        """Every layer and head."""
        return self._writer.attention(self.prompt_ids, self.ids)

    @cached_property
    def log_probabilities(self) -> Float[Tensor, "T V"]:
        """How probable every token was at each place of the answer."""
        return self._writer.log_probabilities(self.prompt_ids, self.ids)

    @property
    def _writer(self) -> Writer:
        assert self.writer is not None
        return self.writer


class Writer(ABC):
    """A model that writes, with its tokenizer; `settings` say how it decodes where nothing else is asked for."""

    kinds: tuple[type[nn.Module], ...]  # the models it runs
    samples: bool  # whether it draws at random where no temperature is given
    continues: bool  # whether its answer goes on from the prompt

    def __init__(
        self,
        model: nn.Module,
        tokenizer: TextTokenizer,
        *,
        settings: SearchSettings | None = None,
        ends: Sequence[int] = (),
        name: str = "",
        precision: str = "fp32",
        graphs: bool = True,
    ):
        """With `graphs`, the steps of a search on a GPU are captured and replayed: same answers, sooner."""
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.settings = settings or SearchSettings()
        self.device = next(model.parameters()).device
        if tokenizer.size > self.vocab:
            raise CheckpointError(
                f"the tokenizer of {name or 'this model'} has {tokenizer.size:,} tokens, but the model knows "
                f"{self.vocab:,}; they do not belong together"
            )
        self.ends = tuple(ends) or (() if tokenizer.end is None else (tokenizer.end,))
        steps = running_form(self.model, precision, self.vocabulary.end)
        self.steps = captured(steps, self.device) if graphs else steps

    @classmethod
    def load(
        cls: type[Kind],
        folder: str | Path,
        *,
        device: str = "cpu",
        allow_pickle: bool = False,
        precision: str = "fp32",
        graphs: bool = True,
    ) -> Kind:
        """Read a model folder, ours or Hugging Face's."""
        loaded = load_model(Path(folder), find_device(device), allow_pickle)
        if not isinstance(loaded.model, cls.kinds):
            expected = " or ".join(kind.__name__.lower() for kind in cls.kinds)
            raise UsageError(f"{folder} is a {loaded.name} model; expected a {expected}")
        tokenizer = TextTokenizer.load(loaded.folder)
        settings, ends = read_decoding(loaded.folder, answers=not cls.continues)
        options: dict[str, Any] = {"name": Path(folder).name, "precision": precision, "graphs": graphs}
        return cls(loaded.model, tokenizer, settings=settings, ends=ends, **options)

    @overload
    def generate(self, prompts: str, **changes: Any) -> Completion: ...

    @overload
    def generate(self, prompts: Sequence[str], **changes: Any) -> list[Completion]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float | None = None,
        stop: str | Sequence[str] = (),
        n: int = 1,
        best_of: int | None = None,
        **changes: Any,
    ) -> Completion | list[Completion]:
        """Write something for one prompt or several; `changes` are values of SearchSettings (top_k, beam, seed, …).

        With temperature 0 every token is the most probable one; with `beam` above 1 a beam search looks further ahead;
        otherwise tokens are drawn at random, alike for the same seed. Of `best_of` drawn texts the `n` most probable
        (by the mean log-probability of their tokens) are given, the best with the others as its `alternatives`.
        """
        settings = self._settings(max_tokens, temperature, n, best_of, changes)
        texts, stops = all_texts(prompts), _stops(stop)
        rows = [self.read(text) for text in texts]
        found: list[list[Hypothesis]] = [[] for _ in rows]
        samples = settings.n_best if settings.sample else 1
        for chosen in self._batches([samples * (len(row) + max_tokens) for row in rows]):
            some = [rows[i] for i in chosen]
            answers = search(*self._task(some, settings), **self._options(some, stops))
            for i, hypotheses in zip(chosen, answers, strict=True):
                found[i] = hypotheses[:n]
        results = []
        for text, row, hypotheses in zip(texts, rows, found, strict=True):
            best, *others = (self._completion(text, row, each, stops) for each in hypotheses)
            best.alternatives.extend(others)
            results.append(best)
        return results[0] if isinstance(prompts, str) else results

    def stream(
        self,
        prompt: str,
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float | None = None,
        stop: str | Sequence[str] = (),
        **changes: Any,
    ) -> Iterator[Chunk]:
        """What `generate` gives for one prompt, piece by piece as soon as it cannot change any more."""
        settings, stops = self._settings(max_tokens, temperature, 1, None, changes), _stops(stop)
        row, shown = self.read(prompt), 0
        with torch.inference_mode():
            running = Search(*self._task([row], settings), **self._options([row], stops))
        while not running.done:
            running.advance()
            settled = _settled(self.written(row, running.common()), stops)
            if len(settled) > shown:
                yield Chunk(settled[shown:])
                shown = len(settled)
        last = self._completion(prompt, row, running.results()[0][0], stops)
        yield Chunk(last.text[shown:], last.reason, last)

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that become unknown tokens."""
        return unknown_words(text, self.tokenizer.reads)

    @abstractmethod
    def read(self, prompt: str) -> list[int]:
        """The token numbers the model is given for a prompt."""

    @abstractmethod
    def written(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """The text of an answer."""

    @abstractmethod
    def fed(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """What is read, and what the writing side is fed token by token, when a prompt has an answer.

        A language model has no reading side: it is fed the prompt too.
        """

    @abstractmethod
    def forced(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "T V"]:
        """The logits of every next token, by one pass over what `fed` gave."""

    @torch.inference_mode()
    def attention(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int],
        layers: str | Sequence[str] = "*",
        *,
        scores: bool = False,
    ) -> Attention:
        """Where the model looked while it wrote an answer; with `scores`, what comes before the softmax instead."""
        require_attention(self.model, self.name)
        source, target = self.fed(prompt_ids, ids)
        target = target[: self.context]  # the last token of an answer that fills the context was never read
        with record(self.model, layers, scores=scores, stop=True) as looks:
            self.forced(source, target)
        weights = {name: each[0].float().cpu().numpy() for name, each in looks.items()}
        return Attention(self.tokenizer.pieces(source), self.tokenizer.pieces(target), weights)

    @torch.inference_mode()
    def log_probabilities(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Float[Tensor, "T V"]:
        """How probable every token was at each place of an answer; of an empty one, at its first."""
        logits = self.forced(*self.fed(prompt_ids, ids[:-1]))
        return logits[len(logits) - max(len(ids), 1) :].float().log_softmax(dim=-1)

    @torch.inference_mode()
    def foretell(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int] = (),
        *,
        places: tuple[int, int] | None = None,
        top: int = TOP,
        ended: bool = False,
        temperature: float | None = None,
        **changes: Any,
    ) -> list[Foretold]:
        """The most probable next tokens at every place the writing side was fed (or from one to before another).

        `ended`: the answer was followed by the end token. `temperature` and `changes` (top_k, top_p, min_p) say how
        tokens were drawn.
        """
        check_top(top)
        settings = self._settings(1, temperature, 1, None, {"beam": 1, **changes})
        source, target = self.fed(prompt_ids, ids)
        first, last = places or (0, len(target))
        log_p = self.forced(source, target[: self.context])[first:last].float().log_softmax(dim=-1)
        came = [*target[1:], *(self.ends[:1] if ended else ())]
        return foretell(
            log_p, came[first:last], first=first, written=len(target) - len(ids), top=top, settings=settings,
            vocabulary=self.vocabulary, pieces=self.tokenizer.shown,
        )  # fmt: skip

    @property
    @abstractmethod
    def vocab(self) -> int: ...

    @property
    @abstractmethod
    def vocabulary(self) -> Vocabulary:
        """The tokens that begin, end and pad answers."""

    @property
    def context(self) -> int | None:
        """Most tokens of prompt and answer together, if there is a limit."""
        return None

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """Which prompts are answered together, by their numbers."""
        return batches_by_length(lengths)

    def _first(self, rows: Sequence[list[int]]) -> Tensor | None:
        """The tokens that answers continue; None for a model that begins them with its start token."""
        return None

    def _settings(
        self, max_tokens: int, temperature: float | None, n: int, best_of: int | None, changes: dict[str, Any]
    ) -> SearchSettings:
        if max_tokens < 1 or n < 1 or (best_of is not None and best_of < n):
            raise UsageError(f"max_tokens {max_tokens} and n {n} must be at least 1, and best_of {best_of} at least n")
        beam = changes.get("beam", 1 if temperature else self.settings.beam)
        if beam > 1 and (temperature or best_of):
            raise UsageError("a beam search draws nothing at random; leave out beam, or temperature and best_of")
        sample = beam == 1 and (self.samples if temperature is None else temperature != 0)
        drawn = {"temperature": temperature} if temperature and sample else {}
        for token in changes.get("logit_bias", ()):
            if not 0 <= token < self.vocab:
                raise UsageError(f"logit_bias names the token {token}; this model has tokens 0 to {self.vocab - 1}")
        return self.settings.replace(
            **{**changes, **drawn, "beam": beam, "sample": sample, "n_best": max(n, best_of or n)},
            max_length=max_tokens, context=self.context,
        )  # fmt: skip

    def _task(
        self, rows: Sequence[Sequence[int]], settings: SearchSettings
    ) -> tuple[Steps, Tensor, Tensor, SearchSettings, Vocabulary]:
        source, mask = pad_rows(rows, self.tokenizer.pad)
        return self.steps, source.to(self.device), mask.to(self.device), settings, self.vocabulary

    def _options(self, rows: Sequence[list[int]], stops: Sequence[str]) -> dict[str, Any]:
        return {"first": self._first(rows), "stop": self._stop(rows, stops)}

    def _stop(self, rows: Sequence[list[int]], stops: Sequence[str]) -> Stop | None:
        """Says whether an answer has come to a stop string or one of the further end tokens."""
        others = set(self.ends[1:])
        if not stops and not others:
            return None
        longest = max((len(each.encode()) for each in stops), default=0)  # a token adds a byte at least

        def ended(sentence: int, tokens: list[int]) -> bool:
            recent = len(tokens) - min(len(tokens), longest + CONTEXT)
            text = self.written([*rows[sentence], *tokens[:recent]], tokens[recent:]) if stops else ""
            return tokens[-1] in others or any(each in text for each in stops)

        return ended

    def _completion(self, prompt: str, row: list[int], found: Hypothesis, stops: Sequence[str]) -> Completion:
        text = self.written(row, found.tokens)
        places = [place for place in (text.find(each) for each in stops) if place >= 0]
        text = text[: min(places)] if places else text
        reason: Reason = "stop" if found.finished else "length"
        return Completion(prompt, text, found.score, found.log_probability, reason, found.tokens, row, writer=self)


def _stops(stop: str | Sequence[str]) -> list[str]:
    stops = [stop] if isinstance(stop, str) else list(stop)
    if "" in stops:
        raise UsageError("a stop string is empty; it would end every text before its first word")
    return stops


def _settled(text: str, stops: Sequence[str]) -> str:
    """As much of a text as stays: no unfinished character, no stop string, no beginning of one at its end."""
    for each in stops:
        text = text.partition(each)[0]
    text = text.rstrip(BROKEN)
    held = (n for each in stops for n in range(1, len(each)) if text.endswith(each[:n]))
    return text[: len(text) - max(held, default=0)]
