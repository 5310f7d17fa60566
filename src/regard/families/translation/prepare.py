"""From files of sentence pairs to an encoded corpus: read, filter, learn a tokenizer, encode; once per run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Literal

from regard.data.formats.filters import PairFilter, dropped_pairs, split_by_hash
from regard.data.formats.languages import styled
from regard.data.formats.pairs import Pair, read_pairs, read_two_files
from regard.data.sources import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_store import PairStore, encode_corpus
from regard.data.tokenizers.pair import PairTokenizer, TokenizerConfig, read_pair_tokenizer, train_pair_tokenizer
from regard.errors import DataError
from regard.families.translation.base_translator import write_base
from regard.families.translation.word_aligner import Aligner
from regard.training.recipe.data_sections import PAIR_PARTS, PairPart, PairsSection
from regard.training.recipe.files import PHRASEBOOK
from regard.training.safeguards import Poll
from regard.training.stages import Stages

REPORT = "report.json"
OLD_VALID: Literal["old_valid"] = "old_valid"
PHRASEBOOK_PARTS: dict[PairPart, Part] = {**{part: part for part in PARTS}, "old": "train", OLD_VALID: "valid"}
TRAIN_TEXT, OLD_TEXT = "train.jsonl", "old.jsonl"
BASE = "base"  # the folder of the translator that training starts from
PLAIN_SHARE = 0.1  # of training pairs with a style that are learnt without it
FEWEST = 10  # pairs of an adaptation
LEARNT_FROM = 250_000  # the most pairs, evenly spread, that a tokenizer is learnt from


@dataclass(frozen=True)
class Corpus:
    """The pairs of a translator; `report` counts those kept, and those dropped by reason."""

    tokenizer: PairTokenizer
    train: PairStore  # the new pairs, then the old ones
    valid: list[Pair]
    test: list[Pair]
    old_valid: list[Pair]
    report: dict[str, int]


@dataclass(frozen=True)
class PairFile:
    """Pairs in a JSON-lines file, read again by each iteration."""

    path: Path

    def __iter__(self) -> Iterator[Pair]:
        with self.path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                source, target, to, links, possible = json.loads(line)
                yield Pair(source, target, _tuples(links), to, _tuples(possible))

    @contextmanager
    def writer(self) -> Iterator[Callable[[Pair], None]]:
        """A function that adds a pair."""
        with self.path.open("w", encoding="utf-8", newline="\n") as file:
            yield lambda pair: print(
                json.dumps([pair.source, pair.target, pair.to, pair.links, pair.possible]), file=file
            )


@dataclass(frozen=True)
class EveryNth:
    """One of every `step` pairs, read again by each iteration."""

    pairs: Iterable[Pair]
    step: int

    def __iter__(self) -> Iterator[Pair]:
        return islice(self.pairs, 0, None, self.step)


def _tuples(links: list[list[int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if links is None else tuple((source, target) for source, target in links)


@dataclass(frozen=True)
class PairPreparation:
    """How the files of a recipe become a corpus.

    `init` names a translator whose tokenizer is taken instead of learning one; it is copied beside the corpus, and if
    its embeddings are `frozen` it learns no new language. `align` links the tokens of every training pair that
    translate each other.
    """

    data: PairsSection
    tokenizer: TokenizerConfig
    seed: int
    init: str = ""
    frozen: bool = False
    align: bool = False

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            self._write(folder, poll)

    def open(self, folder: Path) -> Corpus:
        """The corpus that was written into `folder`."""
        old_valid = folder / f"{OLD_VALID}.jsonl"
        return Corpus(
            PairTokenizer.load(folder / (BASE if self.init else "tokenizer")),
            PairStore.open(folder / "train"),
            list(PairFile(folder / "valid.jsonl")),
            list(PairFile(folder / "test.jsonl")),
            list(PairFile(old_valid)) if old_valid.exists() else [],  # runs of earlier versions have none
            json.loads((folder / REPORT).read_text(encoding="utf-8")),
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        stages = Stages(folder)
        if self.init:  # first of all, since a folder that is no translator is found at once
            stages.once("base", lambda place: write_base(self.init, place / BASE, self.data, frozen=self.frozen))
        elif self.tokenizer.file:  # the same for a file that is no SentencePiece model
            read_pair_tokenizer(self.tokenizer, self.data.source, self.data.targets)
        texts = stages.once("texts", lambda place: self._sort_into_files(place, poll))
        train, old = (PairFile(texts / name) for name in (TRAIN_TEXT, OLD_TEXT))
        count = json.loads((texts / REPORT).read_text(encoding="utf-8"))["train"]

        def learn(place: Path) -> None:
            styles = sorted({pair.to for pair in train}.difference(self.data.targets)) if self.data.style else []
            targets = [*self.data.targets, *styles]
            if self.tokenizer.file:
                tokenizer = read_pair_tokenizer(self.tokenizer, self.data.source, targets)
            else:
                some = EveryNth(train, -(-count // LEARNT_FROM))
                tokenizer = train_pair_tokenizer(some, self.tokenizer, self.data.source, targets)
            tokenizer.save(place / "tokenizer")

        if self.init:
            tokenizer = PairTokenizer.load(stages.parts / "base" / BASE)
        else:
            tokenizer = PairTokenizer.load(stages.once("vocabulary", learn) / "tokenizer")
        poll()

        def encode(place: Path) -> None:
            store = encode_corpus(chain(train, old), tokenizer, place / "train", keep_text=self.tokenizer.dropout > 0)
            if self.align:
                store.add_links(Aligner(store, max(tokenizer.source.size, tokenizer.target.size), poll).links(store))

        stages.once("tokens", encode)
        stages.gather(TRAIN_TEXT, OLD_TEXT)

    def _sort_into_files(self, folder: Path, poll: Poll) -> None:
        """Read every source once, since generating or parsing it may be slow; count the pairs kept and dropped."""
        keep, counts = PairFilter(self.data.filters), Counter[str]()
        with ExitStack() as stack:
            files = {part: stack.enter_context(PairFile(folder / f"{part}.jsonl").writer()) for part in PAIR_PARTS}

            def write(part: PairPart, pair: Pair) -> None:
                poll()
                files[part](pair)
                counts[part] += 1

            for pair in keep(self._pairs("train")):
                write("valid" if not self.data.valid and self._held_out(pair) else "train", pair)
            for pair in PairFilter(self.data.filters)(self._pairs("old")):
                write(OLD_VALID if not self.data.old_valid and self._held_out(pair) else "old", pair)
            for part in ("valid", "test", OLD_VALID):
                for pair in filter(_filled, self._pairs(part)):
                    write(part, pair)
        dropped = dropped_pairs(keep.report)
        if not counts["train"]:
            raise DataError(f"no training pair is left after filtering: {dropped}; loosen [data.filters]")
        if self.init and counts["train"] < FEWEST:
            usable = "1 usable pair" if counts["train"] == 1 else f"{counts['train']} usable pairs"
            raise DataError(
                f"data.train has {usable} ({dropped or 'none was dropped'}); "
                f"to adapt a model give at least {FEWEST}, better 500"
            )
        report: dict[str, int] = {**keep.report, **{part: counts[part] for part in PAIR_PARTS}}
        (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")

    def _pairs(self, part: PairPart) -> Iterator[Pair]:
        for target in self.data.targets_of(part):
            path = self.data.path(part, target)
            if path:
                for pair in self._of_target(part, path, target):
                    to = target if part == "train" and self._without_style(pair) else styled(target, pair.style)
                    yield Pair(pair.source, pair.target, pair.links, to, pair.possible)

    def _of_target(self, part: PairPart, path: str, target: str) -> Iterator[Pair]:
        data = self.data
        if source := data.source_lines(part):
            return read_two_files(source, path)
        if path != PHRASEBOOK and data.swap:
            pairs = read_pairs(path, target, data.source, style=data.style)
            return (Pair(pair.target, pair.source, style=pair.style) for pair in pairs)
        if path != PHRASEBOOK:
            return read_pairs(path, data.source, target, style=data.style)
        book, drawn = data.phrasebook, PHRASEBOOK_PARTS[part]
        count = {"train": book.count, "valid": book.valid_count, "test": book.test_count}[drawn]
        return phrases(
            target,
            part=drawn,
            count=count,
            seed=self.seed,
            min_words=book.min_words,
            max_words=book.max_words,
        )

    @staticmethod
    def _without_style(pair: Pair) -> bool:
        """Whether the style of a training pair is left out, so that a model also translates if none is asked for."""
        return split_by_hash(pair.target, {"styled": 1.0 - PLAIN_SHARE, "plain": PLAIN_SHARE}) == "plain"

    def _held_out(self, pair: Pair) -> bool:
        """Whether a pair belongs to the share held out for validation; all translations of a source do, or none."""
        return split_by_hash(pair.source, {"train": 1.0 - self.data.split, "valid": self.data.split}) == "valid"


def _filled(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())
