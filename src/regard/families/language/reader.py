"""Reading texts: language models by the loss of every next token, encoders by that of hidden words, or of what their
head says about a text: a label or a value, a tag of every word, or where the answer to a question stands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn import functional

from regard.data.batch import LabelledBatch, SpanBatch, TextBatch, pad_rows
from regard.data.formats.lines import read_lines, read_text, refuse
from regard.data.formats.pairs import Pair
from regard.data.text.masking import Masking
from regard.data.tokenizers.text import TextTokenizer
from regard.errors import DataError, UsageError
from regard.families.language.bert import Bert
from regard.families.language.classification import label_error, labelled_batch
from regard.families.language.data import EncodedTexts, Row
from regard.families.language.encoder import TextEncoder
from regard.families.language.formats import FACTS, Question, target_of
from regard.families.language.language_models import LanguageModel, TextToText
from regard.families.language.prompts import PROMPTS, prompts, read_prompts
from regard.families.language.token_heads import (
    AnsweringTask,
    TaggingTask,
    asked_questions,
    span_row,
    span_scores,
    tag_row,
    tagged_texts,
)
from regard.look.reader import PREFIX, SAMPLES, Example, Reader, Source, SourceReader, TokenUnits, summed_loss

TEMPERATURE = 0.9  # of these texts
AT_ONCE = 256  # of them that are written together
CONTINUED = 12  # tokens of an answer
GUESSES = 3
B = TypeVar("B", TextBatch, LabelledBatch | TextBatch | SpanBatch)


class TokenReader(Reader[B]):
    """A model that reads texts as tokens. Of a recurrent network that reads backwards, the last token comes first."""

    tokenizer: TextTokenizer

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        self.tokenizer, self.config = pipeline.tokenizer, pipeline.config

    def real(self, batch: B, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        tokens = self.tokenizer.running(example[0].tolist())
        return TokenUnits(tokens[::-1] if place.startswith("backwards") else tokens)

    def token_name(self, number: int) -> str:
        """A token as it is shown."""
        return self.tokenizer.shown([number])[0]


class LanguageModelReader(TokenReader[TextBatch]):
    """A language model that reads texts, each from its beginning."""

    columns: ClassVar = {"ids": "<i4"}
    built_in: ClassVar[Sequence[str]] = (SAMPLES,)

    def __init__(self, pipeline: LanguageModel) -> None:
        super().__init__(pipeline)
        self.longest = getattr(self.config, "max_length", None)  # None: a recurrent model has no limit
        self.opening = [] if self.tokenizer.start is None else [self.tokenizer.start]

    def examples(self, source: Source) -> Iterator[Example]:
        block = min(source.block, self.longest or source.block)
        if source.path == SAMPLES:
            yield from self._written(source, block)
            return
        for ids in _blocks(self.tokenizer, source, block, self.opening):
            yield (np.array(ids, dtype=np.int32),)

    def given(self, text: str) -> Example:
        return (np.array(self.pipeline.opened(text)[: self.longest], dtype=np.int32),)

    def batch(self, examples: Sequence[Example]) -> TextBatch:
        tokens, mask = (part.to(self.device) for part in pad_rows([ids for (ids,) in examples], 0))
        return TextBatch(tokens, mask, tokens.roll(-1, 1), mask & functional.pad(mask, (0, 1))[:, 1:])

    def run(self, batch: TextBatch) -> object:
        return self.model(batch.inputs, None if bool(batch.mask.all()) else batch.mask, factored=True)

    def loss(self, batch: TextBatch) -> tuple[float, int]:
        logits = self.model(batch.inputs, None if bool(batch.mask.all()) else batch.mask)
        return summed_loss(logits, batch.labels, batch.labels_mask)

    def answer(self, example: Example, position: int) -> str:
        prompt = self.tokenizer.decode(example[0][: position + 1].tolist())
        return self.pipeline.generate(prompt, temperature=0.0, max_tokens=CONTINUED).text

    def output_names(self) -> Callable[[int], str]:
        return self.token_name

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


class BothWaysReader(LanguageModelReader):
    """An ELMo that reads texts, by the loss of every next and of every previous token."""

    built_in: ClassVar[Sequence[str]] = ()

    def __init__(self, pipeline: TextEncoder) -> None:
        TokenReader.__init__(self, pipeline)
        self.longest, self.opening = pipeline.config.longest, []

    def given(self, text: str) -> Example:
        (found,) = self.tokenizer.encode([text], longest=self.longest)
        return (np.array(found.ids, dtype=np.int32),)

    def loss(self, batch: TextBatch) -> tuple[float, int]:
        output: Any = self.model(batch.inputs, batch.mask)
        ahead, count = summed_loss(output.logits, batch.labels, batch.labels_mask)
        following = batch.labels_mask.roll(1, 1)  # tokens that have one before them
        back, more = summed_loss(output.previous, batch.inputs.roll(1, 1), following)
        return ahead + back, count + more

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The most probable tokens after and before the position."""
        batch = self.batch([example])
        output: Any = self.model(batch.inputs, batch.mask)
        names = [self.token_name(int(each[0, position].argmax())) for each in (output.logits, output.previous)]
        return f"next {names[0]}, before {names[1]}"


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


HeadBatch = LabelledBatch | TextBatch | SpanBatch


class HeadReader(TokenReader[HeadBatch]):
    """A BERT, or an ELMo, with a head that was trained for a task."""

    columns: ClassVar = {"ids": "<i4", "segments": "<i4", "targets": "<f4"}
    make: Callable[..., HeadBatch]  # a batch of padded rows, as in training
    error: Callable[..., Tensor]  # the summed loss, as in training

    @abstractmethod
    def rows(self, source: Source) -> Iterator[Row]:
        """The encoded texts of some data, with what is to be said of each."""

    def examples(self, source: Source) -> Iterator[Example]:
        """Texts with their targets; those that are too long are left out."""
        longest = min(source.block, self.config.longest)
        kept = (row for row in islice(self.rows(source), source.count) if len(row.ids) <= longest)
        return map(self.packed, kept)

    def packed(self, row: Row) -> Example:
        """A row as the columns of an example."""
        return tuple(np.array(part, dtype=kind) for part, kind in zip(row, self.columns.values(), strict=True))

    def batch(self, examples: Sequence[Example]) -> HeadBatch:
        rows = [Row(*(part.tolist() for part in example)) for example in examples]
        texts = EncodedTexts(rows, self.tokenizer.pad, self.config.segments, self.make)
        return texts(np.arange(len(rows))).to(self.device)

    def run(self, batch: HeadBatch) -> object:
        return self.logits(batch)

    def logits(self, batch: HeadBatch) -> Tensor:
        """What the head says."""
        logits: Tensor = self.model(batch.inputs, batch.mask, batch.segments).logits
        return logits.float()

    def loss(self, batch: HeadBatch) -> tuple[float, int]:
        return float(self.error(self.logits(batch), batch)), batch.tokens


class MaskedReader(HeadReader):
    """A BERT that guesses the words that training would have it guess, the same ones in every run."""

    make, error = staticmethod(TaggingTask.batch), staticmethod(TaggingTask.error)  # a token is the tag of its place

    def rows(self, source: Source) -> Iterator[Row]:
        masking, longest = Masking(self.tokenizer), min(source.block, self.config.longest)
        for number, line in enumerate(read_text(source.path, source.documents)):
            (found,) = self.tokenizer.encode([line.text.strip()], longest=longest)
            ids = np.array(found.ids)
            hidden, guessed = masking(ids, np.random.default_rng([source.seed, number]))
            if guessed.any():
                yield Row(hidden.tolist(), found.segments, np.where(guessed, ids, -1).tolist())

    def given(self, text: str) -> Example:
        """A text with hidden words, written [MASK]; what they are is not known."""
        name = self.pipeline.mask_name
        marked = text.replace("[MASK]", name) if name else text
        (found,) = self.tokenizer.encode([marked], longest=self.config.longest, marked=True)
        return self.packed(Row(*found, [-1] * len(found.ids)))

    def run(self, batch: HeadBatch) -> object:
        return self.model(batch.inputs, batch.mask, batch.segments, factored=True)

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The most probable tokens at the position."""
        best = self.logits(self.batch([example]))[0, position].softmax(dim=-1).topk(GUESSES)
        names = self.tokenizer.shown(best.indices.tolist())
        return ", ".join(f"{name} {share:.0%}" for name, share in zip(names, best.values.tolist(), strict=True))

    def output_names(self) -> Callable[[int], str]:
        return self.token_name


class LabelReader(HeadReader):
    """Texts with a label or a value: tables of text TAB label, or of text TAB text TAB label."""

    def __init__(self, pipeline: TextEncoder) -> None:
        super().__init__(pipeline)
        self.valued = pipeline.config.label_kind == "value"
        self.labels = [] if self.valued else list(pipeline.label_names())
        self.make = partial(labelled_batch, valued=self.valued)

    @staticmethod
    def error(logits: Tensor, batch: LabelledBatch) -> Tensor:
        return label_error(logits, batch.targets)

    def rows(self, source: Source) -> Iterator[Row]:
        for number, line in enumerate(read_lines(source.path, refuse), 1):
            *texts, label = (cell.strip() for cell in line.split("\t"))
            where = f"{source.path}, line {number}"
            if len(texts) not in (1, 2):
                raise DataError(
                    f"{where}: {len(texts) + 1} columns; expected text TAB label, or text TAB text TAB label"
                )
            (encoded,) = self.tokenizer.encode(texts[:1], texts[1:] or None)
            yield Row(*encoded, [target_of(label, self.labels, where)])

    def given(self, text: str) -> Example:
        """A text; its label is not known."""
        (encoded,) = self.tokenizer.encode([text])
        return self.packed(Row(*encoded, [0]))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        (logits,) = self.logits(self.batch([example]))
        if self.valued:
            return f"{float(logits[0]):.2f}"
        share, number = logits.softmax(dim=-1).max(dim=0)
        return f"{self.labels[int(number)]} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return str if self.valued else self.labels.__getitem__


class TagReader(HeadReader):
    """Texts with a tag of every word, in columns as CoNLL has them. The first token of a word has its tag."""

    built_in: ClassVar = (FACTS,)
    make, error = staticmethod(TaggingTask.batch), staticmethod(TaggingTask.error)

    def rows(self, source: Source) -> Iterator[Row]:
        names = list(self.pipeline.label_names())
        for example in tagged_texts(source.path, source.part, source.count, source.seed):
            if unknown := [tag for tag in example.tags if tag not in names]:
                raise DataError(f"{source.path}: the tag {unknown[0]!r} is none of the model's: {', '.join(names)}")
            yield tag_row(self.tokenizer, example, names)

    def given(self, text: str) -> Example:
        """A text; its tags are not known."""
        (encoded,) = self.tokenizer.encode([text])
        return self.packed(Row(*encoded, [-1] * len(encoded.ids)))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The tag of the token at the position."""
        share, number = self.logits(self.batch([example]))[0, position].softmax(dim=-1).max(dim=0)
        (token,) = self.tokenizer.running([int(example[0][position])])
        return f"{token.strip()}: {self.output_names()(int(number))} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return list(self.pipeline.label_names()).__getitem__


class SpanReader(HeadReader):
    """Questions with a text, as SQuAD has them, and where in the text the answer begins and ends: at the first token if
    the text does not have it."""

    built_in: ClassVar = (FACTS,)
    make, error = staticmethod(AnsweringTask.batch), staticmethod(AnsweringTask.error)

    def rows(self, source: Source) -> Iterator[Row]:
        asked = asked_questions(source.path, source.part, source.count, source.seed)
        return (span_row(self.tokenizer, question) for question in asked)

    def given(self, text: str) -> Example:
        """A question, and a text after its question mark."""
        question, mark, context = text.partition("?")
        if not mark or not context.strip():
            raise UsageError(f"{text[:60]!r} is not a question with a text; write QUESTION? TEXT")
        return self.packed(span_row(self.tokenizer, Question(question + mark, context.strip(), [])))

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The tokens from the most probable first to the most probable last."""
        batch = self.batch([example])
        first, last = span_scores(self.logits(batch), batch.mask)[0].argmax(dim=0).tolist()
        return self.tokenizer.decode(example[0][first : last + 1].tolist()) or "no answer"


HEADS: dict[str, type[HeadReader]] = {"classify": LabelReader, "tags": TagReader, "answer": SpanReader}


def encoder_reader(pipeline: TextEncoder) -> Reader[Any]:
    """The reader of an encoder by its head."""
    model, config = pipeline.model, pipeline.config
    if isinstance(model, Bert) and model.masked is not None and pipeline.tokenizer.mask is not None:
        return MaskedReader(pipeline)
    if config.head == "language":
        return BothWaysReader(pipeline)
    if config.head in HEADS and config.label_kind != "several":
        return HEADS[config.head](pipeline)
    raise UsageError(
        f"{pipeline.name or 'this model'} guesses no hidden words and has no head that says one thing about a text, so "
        "nothing says what an activation is worth; read a BERT with a head for hidden words, labels, tags or answers"
    )
