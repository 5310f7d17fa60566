"""Reading texts: language models, by the loss of every next token, and encoders, by that of hidden words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from regard.data.batch import pad_rows
from regard.data.formats.lines import read_text
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import UsageError
from regard.families.language.encoder import TextEncoder
from regard.families.language.language_models import LanguageModel, TextToText
from regard.families.language.prompts import PROMPTS, prompts, read_prompts
from regard.look.reader import (
    PREFIX,
    SAMPLES,
    Example,
    Reader,
    Source,
    SourceReader,
    TokenUnits,
    summed_loss,
)

TEMPERATURE = 0.9  # of these texts
AT_ONCE = 256  # of them that are written together
CONTINUED = 12  # tokens of an answer
HIDDEN = 0.15  # share of the tokens that an encoder has to guess
GUESSES = 3


class TextInputs(NamedTuple):
    """Texts, padded on the right, and the labels of their tokens."""

    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    labels: Int[Tensor, "B T"]
    counted: Bool[Tensor, "B T"]  # which labels have a loss


class LanguageModelReader(Reader[TextInputs]):
    """A language model that reads texts, each from its beginning."""

    columns: ClassVar = {"ids": "<i4"}
    built_in: ClassVar = (SAMPLES,)

    def __init__(self, pipeline: LanguageModel) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer = pipeline.tokenizer
        self.longest = getattr(pipeline.config, "max_length", None)  # None: a recurrent model has no limit

    def examples(self, source: Source) -> Iterator[Example]:
        block = min(source.block, self.longest or source.block)
        if source.path == SAMPLES:
            yield from self._written(source, block)
            return
        for ids in _blocks(self.tokenizer, source, block, self._opening()):
            yield (np.array(ids, dtype=np.int32),)

    def given(self, text: str) -> Example:
        return (np.array(self.pipeline.opened(text)[: self.longest], dtype=np.int32),)

    def batch(self, examples: Sequence[Example]) -> TextInputs:
        tokens, mask = (part.to(self.device) for part in pad_rows([ids for (ids,) in examples], 0))
        return TextInputs(tokens, mask, tokens.roll(-1, 1), mask & functional.pad(mask, (0, 1))[:, 1:])

    def run(self, batch: TextInputs) -> object:
        return self.model(batch.tokens, None if bool(batch.mask.all()) else batch.mask, factored=True)

    def loss(self, batch: TextInputs) -> tuple[float, int]:
        logits = self.model(batch.tokens, None if bool(batch.mask.all()) else batch.mask)
        return summed_loss(logits, batch.labels, batch.counted)

    def real(self, batch: TextInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        return TokenUnits(self.tokenizer.running(example[0].tolist()))

    def answer(self, example: Example, position: int) -> str:
        prompt = self.tokenizer.decode(example[0][: position + 1].tolist())
        return self.pipeline.generate(prompt, temperature=0.0, max_tokens=CONTINUED).text

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.shown([number])[0]

    def _opening(self) -> list[int]:
        return [] if self.tokenizer.start is None else [self.tokenizer.start]

    def _written(self, source: Source, block: int) -> Iterator[Example]:
        """Texts drawn token by token from the model's own distribution, each from the start of a text to its end."""
        start = self.tokenizer.start if self.tokenizer.start is not None else self.tokenizer.end
        if start is None:
            raise UsageError(f"{self.pipeline.name} has no token that starts a text; give data.train a file of texts")
        part = {"train": 0, "valid": 1, "test": 2}[source.part]
        for first in range(0, source.count, AT_ONCE):
            seed = int(np.random.SeedSequence([source.seed, part, first]).generate_state(1)[0])
            rows = self._drawn(min(AT_ONCE, source.count - first), start, block, seed)
            for row in rows.cpu().numpy().astype(np.int32):
                ends = np.flatnonzero(np.isin(row[1:], [*self.pipeline.ends, start]))
                yield (row[: ends[0] + 1 if len(ends) else len(row)],)

    @torch.inference_mode()
    def _drawn(self, count: int, start: int, block: int, seed: int) -> Int[Tensor, "N T"]:
        random = torch.Generator(self.device).manual_seed(seed)
        tokens = torch.full((count, 1), start, device=self.device)
        writer: Any = self.model
        state, rows = writer.start(tokens, torch.ones_like(tokens, dtype=torch.bool)), [tokens]
        for _ in range(block - 1):
            likely = (writer.step(rows[-1], state)[:, 0].float() / TEMPERATURE).softmax(dim=-1)
            rows.append(torch.multinomial(likely, 1, generator=random))
        return torch.cat(rows, dim=1)


class EncoderReader(Reader[TextInputs]):
    """A BERT that reads texts in which some words are hidden, the same ones in every run."""

    columns: ClassVar = {"ids": "<i4", "labels": "<i4"}  # with hidden words, and without

    def __init__(self, pipeline: TextEncoder) -> None:
        model, tokenizer = pipeline.model, pipeline.tokenizer
        assert tokenizer.mask is not None
        self.pipeline, self.model, self.device, self.tokenizer = pipeline, model, pipeline.device, tokenizer
        self.hide = tokenizer.mask

    def examples(self, source: Source) -> Iterator[Example]:
        longest = min(source.block, self.pipeline.config.longest)
        for number, line in enumerate(read_text(source.path, source.documents)):
            if number == source.count:
                return
            (found,) = self.tokenizer.encode([line.text.strip()], longest=longest)
            ids = np.array(found.ids, dtype=np.int32)
            words = np.flatnonzero(~np.isin(ids, list(self.tokenizer.specials.values())))
            if len(words):
                rng = np.random.default_rng([source.seed, number])
                hidden = ids.copy()
                hidden[rng.choice(words, max(1, round(HIDDEN * len(words))), replace=False)] = self.hide
                yield hidden, ids

    def given(self, text: str) -> Example:
        name = self.pipeline.mask_name
        marked = text.replace("[MASK]", name) if name else text
        (found,) = self.tokenizer.encode([marked], longest=self.pipeline.config.longest, marked=True)
        ids = np.array(found.ids, dtype=np.int32)
        return ids, ids

    def batch(self, examples: Sequence[Example]) -> TextInputs:
        pad = self.tokenizer.pad
        tokens, mask = (part.to(self.device) for part in pad_rows([ids for ids, _ in examples], pad))
        labels = pad_rows([labels for _, labels in examples], pad)[0].to(self.device)
        return TextInputs(tokens, mask, labels, mask & (tokens == self.hide) & (labels != self.hide))

    def run(self, batch: TextInputs) -> object:
        return self.model(batch.tokens, batch.mask, factored=True)

    def loss(self, batch: TextInputs) -> tuple[float, int]:
        return summed_loss(self.model(batch.tokens, batch.mask).logits, batch.labels, batch.counted)

    def real(self, batch: TextInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        return TokenUnits(self.tokenizer.running(example[0].tolist()))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        batch = self.batch([example])
        likely = self.model(batch.tokens, batch.mask).logits[0, position].float().softmax(dim=-1)
        best = likely.topk(GUESSES)
        names = self.tokenizer.shown(best.indices.tolist())
        return ", ".join(f"{name} {share:.0%}" for name, share in zip(names, best.values.tolist(), strict=True))

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.shown([number])[0]


class BothWaysReader(Reader[TextInputs]):
    """An ELMo that reads texts, by the loss of every next and of every previous token. Its backward half has the last
    token first."""

    columns: ClassVar = {"ids": "<i4"}

    def __init__(self, pipeline: TextEncoder) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer, self.longest = pipeline.tokenizer, pipeline.config.longest

    def examples(self, source: Source) -> Iterator[Example]:
        for ids in _blocks(self.tokenizer, source, min(source.block, self.longest), []):
            yield (np.array(ids, dtype=np.int32),)

    def given(self, text: str) -> Example:
        (found,) = self.tokenizer.encode([text], longest=self.longest)
        return (np.array(found.ids, dtype=np.int32),)

    def batch(self, examples: Sequence[Example]) -> TextInputs:
        tokens, mask = (part.to(self.device) for part in pad_rows([ids for (ids,) in examples], self.tokenizer.pad))
        return TextInputs(tokens, mask, tokens.roll(-1, 1), mask & functional.pad(mask, (0, 1))[:, 1:])

    def run(self, batch: TextInputs) -> object:
        return self.model(batch.tokens, batch.mask, factored=True)

    def loss(self, batch: TextInputs) -> tuple[float, int]:
        output: Any = self.model(batch.tokens, batch.mask)
        ahead, count = summed_loss(output.logits, batch.labels, batch.counted)
        following = batch.counted.roll(1, 1)  # tokens that have one before them
        back, more = summed_loss(output.previous, batch.tokens.roll(1, 1), following)
        return ahead + back, count + more

    def real(self, batch: TextInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        return TokenUnits(in_order(self.tokenizer.running(example[0].tolist()), place))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The most probable tokens after and before the position."""
        batch = self.batch([example])
        output: Any = self.model(batch.tokens, batch.mask)
        names = [self.output_names()(int(each[0, position].argmax())) for each in (output.logits, output.previous)]
        return f"next {names[0]}, before {names[1]}"

    def output_names(self) -> Callable[[int], str]:
        return lambda number: self.tokenizer.shown([number])[0]


def in_order(tokens: list[str], place: str) -> list[str]:
    """Tokens in the order in which a place has them: a recurrent network that reads backwards has the last first."""
    return tokens[::-1] if place.startswith("backwards") else tokens


def _blocks(tokenizer: TextTokenizer, source: Source, block: int, opening: list[int]) -> Iterator[list[int]]:
    """Documents as blocks of tokens, each after the token that opens a text; no block has parts of two documents."""
    room, ids, count = block - len(opening), list[int](), 0
    for line in read_text(source.path, source.documents):
        if line.first and len(ids) > 1:
            yield [*opening, *ids]
            count += 1
        ids = [] if line.first else ids
        ids += tokenizer.library.encode(line.text, add_special_tokens=False).ids
        while len(ids) >= room and count < source.count:
            yield [*opening, *ids[:room]]
            ids, count = ids[room:], count + 1
        if count >= source.count:
            return
    if len(ids) > 1:
        yield [*opening, *ids]


WORD = 3  # tokens of a word of built-in data, at most


class PromptReader(SourceReader):
    """A model that reads a prompt and its answer: those of a table of two columns, or built-in ones."""

    built_in: ClassVar = tuple(PREFIX + kind for kind in PROMPTS)

    def __init__(self, pipeline: TextToText) -> None:
        super().__init__(pipeline, pipeline.model, pipeline.generation_settings())
        self.pipeline = pipeline

    def pairs(self, source: Source) -> Iterator[Pair]:
        if source.path.startswith(PREFIX):
            kind, longest = source.path.removeprefix(PREFIX), source.block // WORD
            return prompts(kind, part=source.part, count=source.count, seed=source.seed, max_words=longest)
        return read_prompts(source.path, prefix="")

    def source_ids(self, text: str, to: str) -> list[int]:
        return self.pipeline.read(text)

    def target_ids(self, text: str) -> list[int]:
        return self.pipeline.read(text)

    def pieces(self, ids: Sequence[int], side: str) -> list[str]:
        return self.pipeline.tokenizer.running(ids)

    def given(self, text: str) -> Example:
        """A prompt with the model's own answer."""
        return self.answered(text, "")

    def answer(self, example: Example, position: int) -> str:
        """The answer to the whole prompt."""
        return self.pipeline.tokenizer.decode(self.said(example[0])).strip()
