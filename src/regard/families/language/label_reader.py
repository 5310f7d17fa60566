"""Reading texts with a head that says something about them: a label or a value, a tag of every word, or where the
answer to a question stands."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.data.batch import pad_rows
from regard.data.formats.lines import read_lines, refuse
from regard.errors import DataError, UsageError
from regard.families.language.bert import Bert, BertConfig
from regard.families.language.elmo import ElmoConfig
from regard.families.language.encoder import TextEncoder
from regard.families.language.facts import FACTS, facts
from regard.families.language.formats import Question, TaggedText, read_questions, read_tagged
from regard.families.language.reader import BothWaysReader, EncoderReader, in_order
from regard.look.reader import Example, Reader, Source, TokenUnits, summed_loss

NOTHING = -1.0  # in place of the tag of a token that begins no word


class HeadInputs(NamedTuple):
    """Texts or pairs of texts, padded on the right, and what their head has to say: a number, one for each token, or
    the first and the last token of an answer."""

    tokens: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    segments: Int[Tensor, "B T"] | None
    targets: Float[Tensor, "B N"]


class HeadReader(Reader[HeadInputs]):
    """A BERT, or an ELMo, with a head that was trained for a task."""

    columns: ClassVar = {"ids": "<i4", "segments": "<i4", "targets": "<f4"}

    def __init__(self, pipeline: TextEncoder, config: BertConfig | ElmoConfig) -> None:
        self.pipeline, self.model, self.device = pipeline, pipeline.model, pipeline.device
        self.tokenizer, self.config = pipeline.tokenizer, config

    @abstractmethod
    def told(self, source: Source) -> Iterator[tuple[Sequence[str], Sequence[float]]]:
        """The texts of some data, and the targets of each."""

    def examples(self, source: Source) -> Iterator[Example]:
        """Texts with their targets; those that are too long are left out."""
        longest = min(source.block, self.config.longest)
        for texts, targets in islice(self.told(source), source.count):
            example = self.row(texts, targets)
            if len(example[0]) <= longest:
                yield example

    def row(self, texts: Sequence[str], targets: Sequence[float]) -> Example:
        """One text, or two, as tokens."""
        text, *pair = texts
        (found,) = self.tokenizer.encode([text], pair or None)
        ids, segments = (np.array(each, dtype=np.int32) for each in (found.ids, found.segments))
        return ids, segments, np.array(targets, dtype=np.float32)

    def batch(self, examples: Sequence[Example]) -> HeadInputs:
        tokens, mask = (part.to(self.device) for part in pad_rows([ids for ids, _, _ in examples], self.tokenizer.pad))
        kinds = self.config.segments
        segments = pad_rows([each for _, each, _ in examples], 0)[0].clamp(max=max(0, kinds - 1)).to(self.device)
        rows = [torch.tensor(targets) for _, _, targets in examples]
        targets = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=NOTHING).to(self.device)
        return HeadInputs(tokens, mask, segments if kinds else None, targets)

    def run(self, batch: HeadInputs) -> object:
        return self.logits(batch)

    def logits(self, batch: HeadInputs) -> Tensor:
        """What the head says."""
        logits: Tensor = self.model(batch.tokens, batch.mask, batch.segments).logits
        return logits.float()

    def real(self, batch: HeadInputs, place: str) -> Bool[Tensor, "B T"]:
        return batch.mask

    def units(self, example: Example, place: str) -> TokenUnits:
        return TokenUnits(in_order(self.tokenizer.running(example[0].tolist()), place))


class LabelReader(HeadReader):
    """Texts with a label or a value: tables of text TAB label, or of text TAB text TAB label."""

    def __init__(self, pipeline: TextEncoder, config: BertConfig | ElmoConfig) -> None:
        super().__init__(pipeline, config)
        self.valued = config.label_kind == "value"
        self.labels = [] if self.valued else list(pipeline.label_names())

    def told(self, source: Source) -> Iterator[tuple[Sequence[str], Sequence[float]]]:
        for number, line in enumerate(read_lines(source.path, refuse), 1):
            *texts, label = (cell.strip() for cell in line.split("\t"))
            where = f"{source.path}, line {number}"
            if len(texts) not in (1, 2):
                raise DataError(
                    f"{where}: {len(texts) + 1} columns; expected text TAB label, or text TAB text TAB label"
                )
            yield texts, [self._target(label, where)]

    def given(self, text: str) -> Example:
        """A text; its label is not known."""
        return self.row([text], [0.0])

    def loss(self, batch: HeadInputs) -> tuple[float, int]:
        """The cross-entropy of labels, or the square error of values."""
        logits, targets = self.logits(batch), batch.targets[:, 0]
        if self.valued:
            return float((logits[:, 0] - targets).square().sum()), len(logits)
        return float(functional.cross_entropy(logits, targets.long(), reduction="sum")), len(logits)

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        (logits,) = self.logits(self.batch([example]))
        if self.valued:
            return f"{float(logits[0]):.2f}"
        share, number = logits.softmax(dim=-1).max(dim=0)
        return f"{self.labels[int(number)]} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return str if self.valued else self.labels.__getitem__

    def _target(self, label: str, where: str) -> float:
        if self.valued:
            try:
                return float(label)
            except ValueError:
                raise DataError(f"{where}: {label!r} is no number, which this model gives to texts") from None
        if label not in self.labels:
            raise DataError(f"{where}: the label {label!r} is none of the model's: {', '.join(self.labels)}")
        return float(self.labels.index(label))


class TagReader(HeadReader):
    """Texts with a tag of every word, in columns as CoNLL has them. The first token of a word has its tag."""

    built_in: ClassVar = (FACTS,)

    def told(self, source: Source) -> Iterator[tuple[Sequence[str], Sequence[float]]]:
        known = list(self.pipeline.label_names())
        for text in self._tagged(source):
            if unknown := [tag for tag in text.tags if tag not in known]:
                raise DataError(f"{source.path}: the tag {unknown[0]!r} is none of the model's: {', '.join(known)}")
            words = self.tokenizer.words_of(text.text)
            firsts = [word if word >= 0 and word not in words[:place] else -1 for place, word in enumerate(words)]
            yield [text.text], [float(known.index(text.tags[word])) if word >= 0 else NOTHING for word in firsts]

    def given(self, text: str) -> Example:
        """A text; its tags are not known."""
        return self.row([text], [NOTHING])

    def loss(self, batch: HeadInputs) -> tuple[float, int]:
        counted = batch.targets >= 0
        return summed_loss(self.logits(batch)[:, : counted.shape[1]], batch.targets.long(), counted)

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The tag of the token at the position."""
        share, number = self.logits(self.batch([example]))[0, position].softmax(dim=-1).max(dim=0)
        (token,) = self.tokenizer.running([int(example[0][position])])
        return f"{token.strip()}: {self.output_names()(int(number))} {float(share):.0%}"

    def output_names(self) -> Callable[[int], str]:
        return list(self.pipeline.label_names()).__getitem__

    def _tagged(self, source: Source) -> Iterator[TaggedText]:
        if source.path == FACTS:
            return (text.tagged for text in facts(source.part, source.count, source.seed))
        return read_tagged(source.path)


class SpanReader(HeadReader):
    """Questions with a text, as SQuAD has them, and where in the text the answer begins and ends: at the first token if
    the text does not have it."""

    built_in: ClassVar = (FACTS,)

    def told(self, source: Source) -> Iterator[tuple[Sequence[str], Sequence[float]]]:
        for asked in self._asked(source):
            end = asked.begin + len(asked.answers[0]) if asked.answers else asked.begin
            spans = self.tokenizer.spans(asked.question, asked.context)
            inside = [place for place, (side, i, j) in enumerate(spans) if side == 1 and i < end and j > asked.begin]
            yield [asked.question, asked.context], [float(inside[0]), float(inside[-1])] if inside else [0.0, 0.0]

    def given(self, text: str) -> Example:
        """A question, and a text after its question mark."""
        question, mark, context = text.partition("?")
        if not mark or not context.strip():
            raise UsageError(f"{text[:60]!r} is no question with a text; write QUESTION? TEXT")
        return self.row([question + mark, context.strip()], [0.0, 0.0])

    def loss(self, batch: HeadInputs) -> tuple[float, int]:
        """The cross-entropy of the first and of the last token of every answer."""
        scores = self._scores(batch)
        return float(functional.cross_entropy(scores, batch.targets.long(), reduction="sum")), batch.targets.numel()

    @torch.inference_mode()
    def answer(self, example: Example, position: int) -> str:
        """The tokens from the most probable first to the most probable last."""
        first, last = self._scores(self.batch([example]))[0].argmax(dim=0).tolist()
        return self.tokenizer.decode(example[0][first : last + 1].tolist()) or "no answer"

    def _scores(self, batch: HeadInputs) -> Float[Tensor, "B T 2"]:
        return self.logits(batch).masked_fill(~batch.mask[..., None], -torch.inf)

    def _asked(self, source: Source) -> Iterator[Question]:
        if source.path == FACTS:
            return (text.question for text in facts(source.part, source.count, source.seed))
        return read_questions(source.path)


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
