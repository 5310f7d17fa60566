"""Texts as tasks read them: the corpus of plain texts of a run, and encoded texts with what is to be said of them."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.data.batch import TensorBatch, pad_rows
from regard.data.formats.lines import Line, read_texts, split_text
from regard.data.loader import Loader, Place, Rows
from regard.data.sources import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_loader import plan_batches
from regard.data.text.token_blocks import EncodedLine, TokenStore
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import Style, train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.families.language.bert import BertConfig
from regard.families.language.elmo import ElmoConfig
from regard.families.language.recipe import (
    ClassificationRecipe,
    LanguageRecipe,
    MaskedRecipe,
    SpansRecipe,
    TokenHeadRecipe,
    WordsRecipe,
)
from regard.training.initial_model import initial_tokenizer
from regard.training.recipe.data_sections import PlainTextSection
from regard.training.recipe.files import PHRASEBOOK
from regard.training.safeguards import Poll, polled
from regard.training.stages import Stages
from regard.training.task import SAMPLES, Sample, Values, loader_options
from regard.training.text_task import TextTask, no_validation

CHUNK = 1000  # lines encoded together
HELD_OUT = 500  # sentences of the phrasebook, for validation and as many for testing
CorpusRecipe = LanguageRecipe | MaskedRecipe | SpansRecipe | WordsRecipe
Encode = Callable[[TextTokenizer, Iterable[Line]], Iterator[EncodedLine]]
B = TypeVar("B", bound=TensorBatch)
E = TypeVar("E")


@dataclass(frozen=True)
class TextCorpus:
    """The texts that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    train: TokenStore
    valid: TokenStore
    test: TokenStore

    @classmethod
    def open(cls, folder: Path) -> TextCorpus:
        """The corpus that `prepare` wrote."""
        return cls(TextTokenizer.load(folder / "tokenizer"), *(TokenStore.open(folder / part) for part in PARTS))

    @property
    def summary(self) -> str:
        counts = [f"{len(store.tokens):,}" for store in (self.train, self.valid, self.test)]
        documents, unknown = len(self.train.documents) - 1, self.tokenizer.only_unknown
        told = "" if unknown is None else unknown_tokens({"text": self.train.lines.share(unknown)})
        return (
            f"{counts[0]} tokens in {documents:,} document{'s' * (documents > 1)}; {counts[1]} for validation, "
            f"{counts[2]} for testing; {self.tokenizer.size:,} different ones{told}"
        )


def prepare(recipe: CorpusRecipe, style: Style, encode: Encode, folder: Path, poll: Poll, sentinels: int = 0) -> None:
    """Write the corpus of a recipe into `folder`, unless it exists from before; `encode` turns lines into tokens."""
    if folder.exists():
        return
    stages = Stages(folder)

    def learn(place: Path) -> None:
        if recipe.model.init:
            tokenizer = initial_tokenizer(recipe.model.init)
        else:
            texts = (line.text for line in polled(lines(recipe.data, "train"), poll))
            tokenizer = train_vocabulary(texts, recipe.tokenizer, style, sentinels)
        tokenizer.save(place / "tokenizer")

    tokenizer = TextTokenizer.load(stages.once("vocabulary", learn) / "tokenizer")

    def write(part: Part, place: Path) -> None:
        encoded = encode(tokenizer, polled(lines(recipe.data, part), poll))
        store = TokenStore.write(place / part, encoded, vocabulary=tokenizer.size)
        if part == "train" and len(store.tokens) < 2:
            raise DataError(f"{', '.join(recipe.data.paths('train'))}: no text to learn from; give data.train some")

    for part in PARTS:
        stages.once(part, partial(write, part))
    stages.gather()


def lines(data: PlainTextSection, part: Part) -> Iterator[Line]:
    """The lines of a part; without data.valid the end of the training text is for validation.

    Of the phrasebook these are its English sentences, none of which is in two parts.
    """
    if data.train == PHRASEBOOK:
        count = data.sentences if part == "train" else HELD_OUT
        return (Line(f"{pair.source}\n", True) for pair in phrases("es", part=part, count=count, seed=1))
    if data.documents == "instructions":
        return _instructions(data, part)
    if data.valid or part == "test":
        return read_texts(data.paths(part), data.documents)
    divided = split_text(data.paths("train"), data.documents, data.split)
    return (line for where, line in divided if where == part)


def _instructions(data: PlainTextSection, part: Part) -> Iterator[Line]:
    """The instructions of files of paths, each a document; those in a share of the houses are for validation.

    The houses are the first that tasks on paths hold out too, so that no stage of training reads of them.
    """
    from regard.families.navigation.data import held_out, instructions

    own_file = data.valid or part == "test"
    entries = [entry for path in data.paths(part if own_file else "train") for entry in instructions(path)]
    if not own_file:
        scans = {scan for scan, _ in entries}
        aside = held_out(scans, round(data.split * len(scans)))
        entries = [(scan, texts) for scan, texts in entries if (scan in aside) == (part == "valid")]
    return (Line(f"{text}\n", True) for _, texts in entries for text in texts)


def encoded(tokenizer: TextTokenizer, texts: Iterable[Line]) -> Iterator[tuple[Line, list[int]]]:
    """Lines with their tokens; many at a time, which is fastest for tokenizers."""
    stream = iter(texts)
    while some := list(islice(stream, CHUNK)):
        cut = tokenizer.library.encode_batch_fast([line.text for line in some], add_special_tokens=False)
        yield from ((line, encoding.ids) for line, encoding in zip(some, cut, strict=True))


class CorpusTask(TextTask[B]):
    """A corpus of plain texts, of which a subclass makes batches."""

    style: ClassVar[Style] = "separated"  # of the tokenizer
    recipe: CorpusRecipe

    @classmethod
    @abstractmethod
    def encoder(cls, recipe: CorpusRecipe) -> Encode:
        """What turns lines into tokens."""

    @classmethod
    def prepare(cls, recipe: CorpusRecipe, folder: Path, poll: Poll) -> None:
        prepare(recipe, cls.style, cls.encoder(recipe), folder, poll, getattr(recipe.data, "sentinels", 0))

    def __init__(self, recipe: CorpusRecipe, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.corpus = TextCorpus.open(folder)
        self.tokenizer, self.summary = self.corpus.tokenizer, f"{self.corpus.summary}; from {recipe.data.train}"
        if recipe.training.validate_every and len(self.corpus.valid.tokens) < 2:
            raise no_validation()

    def held_out(self, part: Part) -> TokenStore:
        return getattr(self.corpus, part)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """Empty if the test text has less than two tokens, of which none is predicted."""
        return self.measured(model, self.corpus.test, poll) if len(self.corpus.test.tokens) > 1 else {}


# Texts with something to say of each

MakeBatch = Callable[[Tensor, Tensor, Tensor, list[Sequence[float]]], B]  # of inputs, mask, segments and labels


class Row(NamedTuple):
    """An encoded text and its labels: one, one for each token (-1: none), or the first and last token of an answer."""

    ids: list[int]
    segments: list[int]
    labels: Sequence[float]


@dataclass(frozen=True)
class EncodedTexts(Generic[B]):
    """Makes batches of encoded texts."""

    rows: list[Row]
    pad: int
    segment_types: int  # that the model has; some models read pairs with one
    batch: MakeBatch[B]

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> B:
        some = [self.rows[row] for row in rows.tolist()]
        inputs, mask = pad_rows([row.ids for row in some], self.pad)
        segments = pad_rows([row.segments for row in some], 0)[0].clamp(max=max(0, self.segment_types - 1))
        return self.batch(inputs, mask, segments, [row.labels for row in some])

    def plan(self, batch_tokens: int, seed: int, epoch: int) -> list[Rows]:
        """The rows of every batch of an epoch, texts of like length together."""
        lengths = np.array([len(row.ids) for row in self.rows])
        return plan_batches(lengths, lengths, batch_tokens=batch_tokens, seed=seed, epoch=epoch)


class ReadTextsTask(TextTask[B], Generic[E, B]):
    """Texts with something to say of each; a subclass says what, and how it is measured."""

    recipe: ClassificationRecipe | TokenHeadRecipe
    example: Callable[..., E]
    batch: MakeBatch[B]

    @classmethod
    @abstractmethod
    def read(cls, recipe: Any, path: str, part: Part) -> Iterator[E]:
        """The examples of a file, or built-in ones."""

    @classmethod
    def write(cls, recipe: Any, folder: Path, poll: Poll) -> None:
        """Copy the examples, so that a resumed run learns from the same ones."""
        for part in PARTS:
            path: str = getattr(recipe.data, part)
            with (folder / f"{part}.jsonl").open("w", encoding="utf-8", newline="\n") as file:
                for example in polled(cls.read(recipe, path, part) if path else (), poll):
                    print(json.dumps(example), file=file)

    @classmethod
    def copied(cls, folder: Path, part: Part) -> list[E]:
        with (folder / f"{part}.jsonl").open(encoding="utf-8", newline="\n") as file:
            return [cls.example(*json.loads(line)) for line in file]

    def __init__(self, recipe: Any, folder: Path, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.tokenizer = self._tokenizer(folder)
        self.examples: dict[Part, list[E]] = {part: self.copied(folder, part) for part in PARTS}
        self.model = self._model()
        assert isinstance(self.model.config, BertConfig | ElmoConfig)
        self.config, self.longest = self.model.config, min(recipe.data.longest, self.model.config.longest)
        self.texts: dict[Part, EncodedTexts[B]] = {
            part: EncodedTexts(self._rows(examples), self.tokenizer.pad, self.config.segments, self.batch)
            for part, examples in self.examples.items()
        }
        self._refuse_unusable()
        if recipe.training.validate_every and not self.examples["valid"]:
            raise no_validation()
        train, valid, test = (f"{len(examples):,}" for examples in self.examples.values())
        self.summary = self._summary(train, f"{valid} for validation, {test} for testing")
        self.loader = Loader(self._plan, self.texts["train"], **loader_options(recipe.training, device))

    @abstractmethod
    def _tokenizer(self, folder: Path) -> TextTokenizer:
        """That of the model, or the one that `prepare` made."""

    @abstractmethod
    def _model(self) -> nn.Module:
        """The model with the head of the task."""

    @abstractmethod
    def _rows(self, examples: Sequence[E]) -> list[Row]:
        """Examples as tokens and labels."""

    @abstractmethod
    def _refuse_unusable(self) -> None:
        """Refuse texts that nothing can be learnt from."""

    @abstractmethod
    def _summary(self, train: str, others: str) -> str:
        """A description of the data, with the number of training texts and of the others."""

    @abstractmethod
    def said(self, model: nn.Module, part: Part, poll: Poll) -> tuple[Values, Sequence[str]]:
        """The scores of a model on a part, and what it says of each text as a line."""

    @classmethod
    @abstractmethod
    def sides(cls, example: E) -> Sequence[str]:
        """The texts of an example, as the model reads them."""

    @abstractmethod
    def line(self, example: E) -> str:
        """What is to be said of a text, as a line."""

    def build(self) -> nn.Module:
        return self.model

    def validate(self, model: nn.Module, poll: Poll) -> Values:
        return self._shown(model, "valid", poll)

    def test(self, model: nn.Module, poll: Poll) -> Values:
        """The same on the test texts; empty if the recipe has none."""
        return self._shown(model, "test", poll) if self.examples["test"] else {}

    @torch.inference_mode()
    def _shown(self, model: nn.Module, part: Part, poll: Poll) -> Values:
        examples = self.examples[part]
        values, found = self.said(model, part, poll)
        chosen = range(0, len(examples), max(1, len(examples) // SAMPLES))[:SAMPLES]
        self.shown = [
            Sample(source=" ||| ".join(self.sides(examples[i])), target=self.line(examples[i]), output=found[i])
            for i in chosen
        ]
        return values

    def _plan(self, epoch: int) -> list[Rows]:
        return self.texts["train"].plan(self.recipe.training.batch_tokens, self.recipe.seed, epoch)
