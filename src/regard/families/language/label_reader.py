"""Reading texts with a head that says something about them: a label or a value, a tag of every word, or where the
answer to a question stands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from regard.data.batch import LabelledBatch, SpanBatch, TextBatch
from regard.data.formats.lines import read_lines, refuse
from regard.errors import DataError, UsageError
from regard.families.language.bert import Bert, BertConfig
from regard.families.language.classification import label_error, labelled_batch
from regard.families.language.data import EncodedTexts, Row
from regard.families.language.elmo import ElmoConfig
from regard.families.language.encoder import TextEncoder
from regard.families.language.facts import FACTS
from regard.families.language.formats import Question, target_of
from regard.families.language.reader import BothWaysReader, EncoderReader, in_order
from regard.families.language.token_heads import (
    AnsweringTask,
    TaggingTask,
    asked_questions,
    span_row,
    span_scores,
    tag_row,
    tagged_texts,
)
from regard.look.reader import Example, Reader, Source, TokenUnits

HeadBatch = LabelledBatch | TextBatch | SpanBatch


class HeadReader(Reader[HeadBatch]):
    """A BERT, or an ELMo, with a head that was trained for a task."""

    columns: ClassVar = {"ids": "<i4", "segments": "<i4", "targets": "<f4"}
    make: Callable[..., HeadBatch]  # a batch of padded rows, as in training
    error: Callable[..., Tensor]  # the summed loss, as in training

    def __init__(self, pipeline: TextEncoder, config: BertConfig | ElmoConfig) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer, self.config = pipeline.tokenizer, config

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

    def real(self, batch: HeadBatch, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        return TokenUnits(in_order(self.tokenizer.running(example[0].tolist()), place))


class LabelReader(HeadReader):
    """Texts with a label or a value: tables of text TAB label, or of text TAB text TAB label."""

    def __init__(self, pipeline: TextEncoder, config: BertConfig | ElmoConfig) -> None:
        super().__init__(pipeline, config)
        self.valued = config.label_kind == "value"
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
        return EncoderReader(pipeline)
    if config.head == "language":
        return BothWaysReader(pipeline)
    if config.head in HEADS and config.label_kind != "several":
        return HEADS[config.head](pipeline, config)
    raise UsageError(
        f"{pipeline.name or 'this model'} guesses no hidden words and has no head that says one thing about a text, so "
        "nothing says what an activation is worth; read a BERT with a head for hidden words, labels, tags or answers"
    )
