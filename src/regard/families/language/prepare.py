"""From the files of a recipe to encoded texts and their tokenizer, once per run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from regard.data.formats.plain_text import Line, read_texts, split_text
from regard.data.sources import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.token_blocks import EncodedLine, TokenStore
from regard.data.tokenizers.text import TextTokenizer
from regard.data.tokenizers.training import Style, VocabularyConfig, train_vocabulary
from regard.data.tokenizers.unknown_words import unknown_tokens
from regard.errors import DataError
from regard.training.initial_model import initial_tokenizer
from regard.training.recipe.data_sections import PlainTextSection
from regard.training.recipe.files import PHRASEBOOK
from regard.training.recipe.sections import ModelSection
from regard.training.safeguards import Poll
from regard.training.stages import Stages

CHUNK = 1000  # lines encoded together
HELD_OUT = 500  # sentences of the phrasebook, for validation and as many for testing
Encode = Callable[[TextTokenizer, Iterable[Line]], Iterator[EncodedLine]]


@dataclass(frozen=True)
class TextCorpus:
    """The texts that a model is trained, validated and tested on."""

    tokenizer: TextTokenizer
    train: TokenStore
    valid: TokenStore
    test: TokenStore

    @property
    def summary(self) -> str:
        counts = [f"{len(store.tokens):,}" for store in (self.train, self.valid, self.test)]
        documents, unknown = len(self.train.documents) - 1, self.tokenizer.only_unknown
        told = "" if unknown is None else unknown_tokens({"text": self.train.lines.share(unknown)})
        return (
            f"{counts[0]} tokens in {documents:,} document{'s' * (documents > 1)}; {counts[1]} for validation, "
            f"{counts[2]} for testing; {self.tokenizer.size:,} different ones{told}"
        )


@dataclass(frozen=True)
class TextPreparation:
    """How the files of a recipe become a corpus; `encode` is the task's function from lines to tokens."""

    data: PlainTextSection
    model: ModelSection
    vocabulary: VocabularyConfig
    style: Style
    encode: Encode
    sentinels: int = 0

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            self._write(folder, poll)

    def open(self, folder: Path) -> TextCorpus:
        """The corpus that was written into `folder`."""
        return TextCorpus(TextTokenizer.load(folder / "tokenizer"), *(TokenStore.open(folder / part) for part in PARTS))

    def _write(self, folder: Path, poll: Poll) -> None:
        stages = Stages(folder)
        learnt = stages.once("vocabulary", lambda place: self._tokenizer(poll).save(place / "tokenizer"))
        tokenizer = TextTokenizer.load(learnt / "tokenizer")
        for part in PARTS:
            stages.once(part, partial(self._encode, tokenizer, part, poll))
        stages.gather()

    def _encode(self, tokenizer: TextTokenizer, part: Part, poll: Poll, place: Path) -> None:
        encoded = self.encode(tokenizer, _polled(self.lines(part), poll))
        store = TokenStore.write(place / part, encoded, vocabulary=tokenizer.size)
        if part == "train" and len(store.tokens) < 2:
            raise DataError(f"{', '.join(self.data.paths('train'))}: no text to learn from; give data.train some")

    def _tokenizer(self, poll: Poll) -> TextTokenizer:
        if self.model.init:
            return initial_tokenizer(self.model.init)
        texts = (line.text for line in _polled(self.lines("train"), poll))
        return train_vocabulary(texts, self.vocabulary, self.style, self.sentinels)

    def lines(self, part: Part) -> Iterator[Line]:
        """The lines of a part; without data.valid the end of the training text is for validation."""
        data = self.data
        if data.train == PHRASEBOOK:
            return _phrasebook(part, data.sentences if part == "train" else HELD_OUT)
        if data.documents == "instructions":
            return _instructions(data, part)
        if data.valid or part == "test":
            return read_texts(data.paths(part), data.documents)
        divided = split_text(data.paths("train"), data.documents, data.split)
        return (line for where, line in divided if where == part)


def _phrasebook(part: Part, count: int) -> Iterator[Line]:
    """English sentences of the built-in corpus; no sentence is in two parts."""
    return (Line(f"{pair.source}\n", True) for pair in phrases("es", part=part, count=count, seed=1))


def _instructions(data: PlainTextSection, part: Part) -> Iterator[Line]:
    """The instructions of files of paths, each a document; those in a share of the houses are for validation.

    The houses are the first that tasks on paths hold out too, so that no stage of training reads of them.
    """
    from regard.families.navigation.data import held_out, instructions

    if data.valid or part == "test":
        return _told(entry for path in data.paths(part) for entry in instructions(path))
    entries = [entry for path in data.paths("train") for entry in instructions(path)]
    scans = {scan for scan, _ in entries}
    aside = held_out(scans, round(data.split * len(scans)))
    return _told((scan, texts) for scan, texts in entries if (scan in aside) == (part == "valid"))


def _told(entries: Iterable[tuple[str, tuple[str, ...]]]) -> Iterator[Line]:
    return (Line(f"{text}\n", True) for _, texts in entries for text in texts)


def chunks(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Many lines at a time, which is fastest for tokenizers."""
    stream = iter(lines)
    while some := list(islice(stream, CHUNK)):
        yield some


def _polled(lines: Iterable[Line], poll: Poll) -> Iterator[Line]:
    for line in lines:
        poll()
        yield line
