"""From files of sentence pairs to an encoded corpus: read, filter, learn a tokenizer, encode; once per run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from regard.data.formats.filters import PairFilter, split_by_hash
from regard.data.formats.pairs import Pair, read_pairs
from regard.data.parts import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_store import PairStore, encode_corpus
from regard.data.text.word_aligner import Aligner
from regard.data.tokenizers.pair import PairTokenizer, TokenizerConfig, train_pair_tokenizer
from regard.errors import DataError
from regard.training.prepare.stages import Stages
from regard.training.recipe.files import PHRASEBOOK
from regard.training.recipe.text_sections import PairsSection
from regard.training.safeguards import Poll

REPORT = "report.json"
TRAIN_TEXT = "train.jsonl"
LEARNT_FROM = 250_000  # the most pairs, evenly spread, that a tokenizer is learnt from


@dataclass(frozen=True)
class Corpus:
    """The pairs of a translator; `report` counts those kept, and those dropped by reason."""

    tokenizer: PairTokenizer
    train: PairStore
    valid: list[Pair]
    test: list[Pair]
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

    `align` links the tokens of every training pair that translate each other.
    """

    data: PairsSection
    tokenizer: TokenizerConfig
    seed: int
    align: bool = False

    def prepare(self, folder: Path, poll: Poll) -> None:
        """Write the corpus into `folder`, unless it exists from before."""
        if not folder.exists():
            self._write(folder, poll)

    def open(self, folder: Path) -> Corpus:
        """The corpus that was written into `folder`."""
        return Corpus(
            PairTokenizer.load(folder / "tokenizer"),
            PairStore.open(folder / "train"),
            list(PairFile(folder / "valid.jsonl")),
            list(PairFile(folder / "test.jsonl")),
            json.loads((folder / REPORT).read_text(encoding="utf-8")),
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        stages = Stages(folder)
        texts = stages.once("texts", lambda place: self._sort_into_files(place, poll))
        train = PairFile(texts / TRAIN_TEXT)
        count = json.loads((texts / REPORT).read_text(encoding="utf-8"))["train"]

        def learn(place: Path) -> None:
            some = EveryNth(train, -(-count // LEARNT_FROM))
            tokenizer = train_pair_tokenizer(some, self.tokenizer, self.data.source, self.data.targets)
            tokenizer.save(place / "tokenizer")

        tokenizer = PairTokenizer.load(stages.once("vocabulary", learn) / "tokenizer")
        poll()

        def encode(place: Path) -> None:
            store = encode_corpus(train, tokenizer, place / "train", keep_text=self.tokenizer.dropout > 0)
            if self.align:
                store.add_links(Aligner(store, max(tokenizer.source.size, tokenizer.target.size), poll).links(store))

        stages.once("tokens", encode)
        stages.gather(TRAIN_TEXT)

    def _sort_into_files(self, folder: Path, poll: Poll) -> None:
        """Read every source once, since generating or parsing it may be slow; count the pairs kept and dropped."""
        keep, counts = PairFilter(self.data.filters), Counter[str]()
        with ExitStack() as stack:
            files = {part: stack.enter_context(PairFile(folder / f"{part}.jsonl").writer()) for part in PARTS}
            for pair in keep(self._pairs("train")):
                poll()
                part = self._part(pair)
                files[part](pair)
                counts[part] += 1
            for part in PARTS[1:]:
                for pair in filter(_filled, self._pairs(part)):
                    poll()
                    files[part](pair)
                    counts[part] += 1
        if not counts["train"]:
            raise DataError(f"no training pair is left after filtering: {keep.report}; loosen [data.filters]")
        report: dict[str, int] = {**keep.report, **{part: counts[part] for part in PARTS}}
        (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")

    def _pairs(self, part: Part) -> Iterator[Pair]:
        for target in self.data.targets:
            path = self.data.path(part, target)
            if path:
                for pair in self._of_target(part, path, target):
                    yield Pair(pair.source, pair.target, pair.links, target, pair.possible)

    def _of_target(self, part: Part, path: str, target: str) -> Iterator[Pair]:
        data = self.data
        if path != PHRASEBOOK and data.swap:
            return (Pair(pair.target, pair.source) for pair in read_pairs(path, target, data.source))
        if path != PHRASEBOOK:
            return read_pairs(path, data.source, target)
        book = data.phrasebook
        count = {"train": book.count, "valid": book.valid_count, "test": book.test_count}[part]
        return phrases(
            target,
            part=part,
            count=count,
            seed=self.seed,
            min_words=book.min_words,
            max_words=book.max_words,
            everyday=book.everyday,
        )

    def _part(self, pair: Pair) -> Part:
        """Without validation data a share of the training data is held out, all translations of a source together."""
        if self.data.valid:
            return "train"
        shares = {"train": 1.0 - self.data.split, "valid": self.data.split}
        return "valid" if split_by_hash(pair.source, shares) == "valid" else "train"


def _filled(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())
