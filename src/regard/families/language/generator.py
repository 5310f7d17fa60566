"""Text in, more text out: what language models, which continue a prompt, and T5s, which answer one, have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import record
from regard.data.arguments import all_texts
from regard.data.batch import pad_rows
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord, unknown_words
from regard.errors import CheckpointError, UsageError, with_article
from regard.look.forced_pass import require_attention
from regard.look.predictions import TOP, TokenPrediction, check_top, predict_tokens
from regard.search.pipeline import DecodingPipeline, batches_by_length
from regard.search.search import Hypothesis, Search, search
from regard.search.settings import SearchSettings, Vocabulary, read_decoding
from regard.search.start import SearchStart, Stop, from_prompt, from_source

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


Kind = TypeVar("Kind", bound="TextGenerator")
MAX_TOKENS = 128
CONTEXT = 8  # tokens before a piece of text that decide how it is decoded, such as whether a space comes first


class TextGenerator(DecodingPipeline):
    """A model that generates text, with its tokenizer."""

    model_classes: ClassVar[tuple[type[nn.Module], ...]]  # the models it runs
    samples: ClassVar[bool]  # whether it samples if no temperature is given
    continues: ClassVar[bool]  # whether its answer continues the prompt
    model: nn.Module

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
        self.model, self.tokenizer = model, tokenizer
        if tokenizer.size > self.vocab:
            raise CheckpointError(
                f"the tokenizer of {name or 'this model'} has {tokenizer.size:,} tokens, but the model knows "
                f"{self.vocab:,}; they do not belong together"
            )
        self.ends = tuple(ends) or (() if tokenizer.end is None else (tokenizer.end,))
        super().__init__(
            [model], end=self.vocabulary.end, settings=settings, name=name, precision=precision, graphs=graphs
        )

    @classmethod
    def runs(cls, model: nn.Module) -> bool:
        return isinstance(model, cls.model_classes)

    @classmethod
    def expected(cls) -> str:
        return with_article(" or ".join(each.__name__.lower() for each in cls.model_classes))

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
        (loaded,) = cls.read_models([folder], device, allow_pickle)
        settings, ends = read_decoding(loaded.folder, answers=not cls.continues)
        return cls(
            loaded.model,
            TextTokenizer.load(loaded.folder),
            settings=settings,
            ends=ends,
            name=Path(folder).name,
            precision=precision,
            graphs=graphs,
        )

    @overload
    def generate(self, prompts: str, **changes: Any) -> Completion: ...

    @overload
    def generate(self, prompts: Sequence[str], **changes: Any) -> list[Completion]: ...

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: str | Sequence[str] = (),
        n: int = 1,
        best_of: int | None = None,
        **changes: Any,
    ) -> Completion | list[Completion]:
        """Generate text for one prompt or several; `changes` are values of SearchSettings (top_k, beam, seed, …).

        Without `max_tokens` an answer has at most as many tokens as the model's folder says, or 128. With temperature 0
        every token is the most probable one; with `beam` above 1 beam search is used; otherwise tokens are sampled, the
        same ones for the same seed. Of `best_of` sampled texts the `n` most probable (by the mean log-probability of
        their tokens) are returned: the best, with the others as its `alternatives`.
        """
        settings = self.generation_settings(
            max_tokens=max_tokens, temperature=temperature, n=n, best_of=best_of, **changes
        )
        texts, stops = all_texts(prompts), stop_strings(stop)
        rows = [self.read(text) for text in texts]
        found: list[list[Hypothesis]] = [[] for _ in rows]
        samples = settings.n_best if settings.sample else 1
        for chosen in self._batches([samples * (len(row) + settings.limit(len(row))) for row in rows]):
            start = self._start([rows[i] for i in chosen], settings, stops)
            answers = search(self.decoder, start, settings, self.vocabulary)
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
        max_tokens: int | None = None,
        temperature: float | None = None,
        stop: str | Sequence[str] = (),
        **changes: Any,
    ) -> Iterator[Chunk]:
        """What `generate` returns for one prompt, piece by piece as soon as a piece cannot change any more."""
        settings = self.generation_settings(max_tokens=max_tokens, temperature=temperature, **changes)
        stops, row, shown = stop_strings(stop), self.read(prompt), 0
        with torch.inference_mode():
            running = Search(self.decoder, self._start([row], settings, stops), settings, self.vocabulary)
        while not running.done:
            running.advance()
            final = final_text(self.decode(row, running.common_prefix()), stops)
            if len(final) > shown:
                yield Chunk(final[shown:])
                shown = len(final)
        last = self._completion(prompt, row, running.results()[0][0], stops)
        yield Chunk(last.text[shown:], last.reason, last)

    def generation_settings(
        self,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        n: int = 1,
        best_of: int | None = None,
        **changes: Any,
    ) -> SearchSettings:
        """How this model decodes, with the options of `generate`."""
        contexts = [each for each in (self.context, self.settings.context if max_tokens is None else None) if each]
        if max_tokens is None:
            max_tokens = self.settings.longest or MAX_TOKENS
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
            max_length=max_tokens, context=min(contexts, default=None),
        )  # fmt: skip

    def unknown_words(self, text: str) -> list[UnknownWord]:
        """The words of a text that become unknown tokens."""
        return unknown_words(text, self.tokenizer.reads)

    @abstractmethod
    def read(self, prompt: str) -> list[int]:
        """The token ids that the model is given for a prompt."""

    @abstractmethod
    def decode(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
        """The text of an answer."""

    @abstractmethod
    def forced_inputs(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The inputs of a forced pass over a prompt and its answer: encoder tokens and decoder tokens.

        A language model has no encoder: its decoder reads the prompt too.
        """

    @abstractmethod
    def forced_logits(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "T V"]:
        """The logits of every next token, by one pass over `forced_inputs`."""

    @torch.inference_mode()
    def attention(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int],
        layers: str | Sequence[str] = "*",
        *,
        scores: bool = False,
    ) -> Attention:
        """The attention of a prompt and its answer; with `scores`, what comes before the softmax instead."""
        require_attention(self.model, self.name)
        source, target = self.forced_inputs(prompt_ids, ids)
        target = target[: self.context]  # the last token of an answer that fills the context was never read
        with record(self.model, layers, scores=scores, stop=True) as looks:
            self.forced_logits(source, target)
        weights = {name: each[0].float().cpu().numpy() for name, each in looks.items()}
        return Attention(self.tokenizer.pieces(source), self.tokenizer.pieces(target), weights)

    @torch.inference_mode()
    def log_probabilities(self, prompt_ids: Sequence[int], ids: Sequence[int]) -> Float[Tensor, "T V"]:
        """The log-probability of every token at each place of an answer; of an empty answer, at its first place."""
        logits = self.forced_logits(*self.forced_inputs(prompt_ids, ids[:-1]))
        return logits[len(logits) - max(len(ids), 1) :].float().log_softmax(dim=-1)

    @torch.inference_mode()
    def predict_tokens(
        self,
        prompt_ids: Sequence[int],
        ids: Sequence[int] = (),
        *,
        places: tuple[int, int] | None = None,
        top: int = TOP,
        ended: bool = False,
        settings: SearchSettings | None = None,
    ) -> list[TokenPrediction]:
        """The most probable next tokens at every place of the decoder's input (or from one place to before another).

        `ended`: the answer was followed by the end token. `settings` say how tokens were sampled.
        """
        check_top(top)
        settings = settings or self.generation_settings(max_tokens=1, beam=1)
        source, target = self.forced_inputs(prompt_ids, ids)
        first, last = places or (0, len(target))
        log_p = self.forced_logits(source, target[: self.context])[first:last].float().log_softmax(dim=-1)
        actual = [*target[1:], *(self.ends[:1] if ended else ())]
        return predict_tokens(
            log_p, actual[first:last], first=first, generated_from=len(target) - len(ids), top=top, settings=settings,
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
        """The most tokens of prompt and answer together, if there is a limit."""
        return None

    def _batches(self, lengths: Sequence[int]) -> Iterable[list[int]]:
        """The prompts that are answered together, by their numbers."""
        return batches_by_length(lengths)

    def _start(self, rows: Sequence[list[int]], settings: SearchSettings, stops: Sequence[str]) -> SearchStart:
        """Let the model read prompts, given as token ids."""
        source, mask = (part.to(self.device) for part in pad_rows(rows, self.tokenizer.pad))
        stop = self._stop(rows, stops)
        if self.continues:
            return from_prompt(self.decoder, source, mask, settings, stop=stop)
        return from_source(self.decoder, source, mask, settings, self.vocabulary.start, stop=stop)

    def _stop(self, rows: Sequence[list[int]], stops: Sequence[str]) -> Stop | None:
        """Says whether an answer has reached a stop string or one of the further end tokens."""
        others = set(self.ends[1:])
        if not stops and not others:
            return None
        longest = max((len(each.encode()) for each in stops), default=0)  # a token adds at least a byte

        def ended(sentence: int, tokens: list[int]) -> bool:
            recent = len(tokens) - min(len(tokens), longest + CONTEXT)
            text = self.decode([*rows[sentence], *tokens[:recent]], tokens[recent:]) if stops else ""
            return tokens[-1] in others or any(each in text for each in stops)

        return ended

    def _completion(self, prompt: str, row: list[int], found: Hypothesis, stops: Sequence[str]) -> Completion:
        text = cut_at_stop(self.decode(row, found.tokens), stops)
        reason: Reason = "stop" if found.finished else "length"
        return Completion(prompt, text, found.score, found.log_probability, reason, found.tokens, row, generator=self)
