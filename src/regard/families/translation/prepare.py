"""From files of sentence pairs to an encoded corpus: read, filter, learn a tokenizer, encode; once per run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from regard.data.formats.filters import OTHER, PairFilter, dropped_pairs, split_by_hash
from regard.data.formats.languages import same_language, styled
from regard.data.formats.pairs import Pair, read_pairs, read_two_files, unusable_lines
from regard.data.formats.tables import format_of
from regard.data.sources import PARTS, Part
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_store import PairStore, encode_corpus
from regard.data.text.variants import with_variants
from regard.data.tokenizers.pair import PairTokenizer, TokenizerConfig, read_pair_tokenizer, train_pair_tokenizer
from regard.errors import DataError
from regard.families.translation.base_translator import write_base
from regard.families.translation.word_aligner import Aligner
from regard.training.recipe.data_sections import PAIR_PARTS, CorpusSection, PairPart, PairsSection
from regard.training.recipe.files import PHRASEBOOK
from regard.training.run_folder import DATA
from regard.training.safeguards import Poll
from regard.training.stages import Stages

REPORT, SIZES = "report.json", "corpora.json"
OLD_VALID: Literal["old_valid"] = "old_valid"
PHRASEBOOK_PARTS: dict[PairPart, Part] = {**{part: part for part in PARTS}, "old": "train", OLD_VALID: "valid"}
TRAIN_TEXT, OLD_TEXT = "train.jsonl", "old.jsonl"
BASE = "base"  # the folder of the translator that training starts from
PLAIN_SHARE = 0.1  # of training pairs with a style that are learnt without it
ENGLISH = "en"
ENCODED_ALONE, MOST_WORKERS = 200_000, 16  # pairs that one process encodes; processes that encode more
FEWEST = 10  # pairs of an adaptation
# Of the training pairs, so many are held out if data.valid is not given: fewer steer a training by chance. But at least
# one of SELDOM pairs, and at most one of OFTEN.
HELD_OUT, SELDOM, OFTEN = 200, 100, 10
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
    sizes: list[int]  # the training pairs of each corpus


@dataclass(frozen=True)
class PairFile:
    """Pairs in a JSON-lines file, read again by each iteration."""

    path: Path

    def __iter__(self) -> Iterator[Pair]:
        with self.path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                source, target, to, links, possible, *language = json.loads(line)
                yield Pair(source, target, _tuples(links), to, _tuples(possible), source_language="".join(language))

    @contextmanager
    def writer(self) -> Iterator[Callable[[Pair], None]]:
        """A function that adds a pair."""
        with self.path.open("w", encoding="utf-8", newline="\n") as file:
            yield lambda pair: print(json.dumps(_fields(pair)), file=file)


@dataclass(frozen=True)
class EveryNth:
    """One of every `step` pairs, read again by each iteration."""

    pairs: Iterable[Pair]
    step: int

    def __iter__(self) -> Iterator[Pair]:
        return islice(self.pairs, 0, None, self.step)


def _fields(pair: Pair) -> list[object]:
    fields: list[object] = [pair.source, pair.target, pair.to, pair.links, pair.possible]
    return [*fields, pair.source_language] if pair.source_language else fields


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
        old_valid, sizes = folder / f"{OLD_VALID}.jsonl", folder / SIZES
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        return Corpus(
            PairTokenizer.load(folder / (BASE if self.init else "tokenizer")),
            PairStore.open(folder / "train"),
            list(PairFile(folder / "valid.jsonl")),
            list(PairFile(folder / "test.jsonl")),
            list(PairFile(old_valid)) if old_valid.exists() else [],  # runs of earlier versions have none
            report,
            json.loads(sizes.read_text(encoding="utf-8")) if sizes.exists() else [report["train"]],
        )

    def _write(self, folder: Path, poll: Poll) -> None:
        stages = Stages(folder)
        if self.init:  # first of all, since a folder that is no translator is found at once
            stages.once("base", lambda place: write_base(self.init, place / BASE, self.data, frozen=self.frozen))
        elif self.tokenizer.file:  # the same for a file that is no SentencePiece model
            read_pair_tokenizer(self.tokenizer, self.data.sources, self.data.targets)
        texts = stages.once("texts", lambda place: self._sort_into_files(place, poll))
        train, old = (PairFile(texts / name) for name in (TRAIN_TEXT, OLD_TEXT))
        count = json.loads((texts / REPORT).read_text(encoding="utf-8"))["train"]

        def learn(place: Path) -> None:
            styles = sorted({pair.to for pair in train}.difference(self.data.targets)) if self.data.style else []
            targets = [*self.data.targets, *styles]
            if self.tokenizer.file:
                tokenizer = read_pair_tokenizer(self.tokenizer, self.data.sources, targets)
            else:
                some = EveryNth(train, -(-count // LEARNT_FROM))
                tokenizer = train_pair_tokenizer(some, self.tokenizer, self.data.sources, targets)
            tokenizer.save(place / "tokenizer")

        if self.init:
            tokenizer = PairTokenizer.load(stages.parts / "base" / BASE)
        else:
            tokenizer = PairTokenizer.load(stages.once("vocabulary", learn) / "tokenizer")
        poll()

        def encode(place: Path) -> None:
            store = encode_corpus(
                chain(train, old),
                tokenizer,
                place / "train",
                keep_text=self.tokenizer.dropout > 0,
                workers=min(os.cpu_count() or 1, MOST_WORKERS) if count > ENCODED_ALONE else 0,
            )
            if self.align:
                store.add_links(Aligner(store, max(tokenizer.source.size, tokenizer.target.size), poll).links(store))

        stages.once("tokens", encode)
        stages.gather(TRAIN_TEXT, OLD_TEXT)

    def _sort_into_files(self, folder: Path, poll: Poll) -> None:
        """Read every source once, since generating or parsing it may be slow; count the pairs kept and dropped."""
        others = sum(map(self._unusable, PAIR_PARTS))
        keep, counts = PairFilter(self.data.filters), Counter[str]()
        share = 0.0 if self.data.valid else self._share("train", poll)
        old_share = 0.0 if self.data.old_valid else self._share("old", poll)
        with ExitStack() as stack:
            files = {part: stack.enter_context(PairFile(folder / f"{part}.jsonl").writer()) for part in PAIR_PARTS}

            def write(part: PairPart, pair: Pair) -> None:
                poll()
                files[part](pair)
                counts[part] += 1

            def learnt(pairs: Iterable[Pair]) -> Iterator[Pair]:
                """The pairs but those held out for validation, which are written."""
                for pair in pairs:
                    if _held_out(pair, share):
                        write("valid", pair)
                    else:
                        yield pair

            sizes = []
            for corpus in self.data.corpora("train"):
                before = counts["train"]
                for pair in with_variants(learnt(keep(self._read("train", corpus))), self.data.variants, self.seed):
                    write("train", pair)
                sizes.append(counts["train"] - before)
            for pair in PairFilter(self.data.filters)(self._pairs("old")):
                write(OLD_VALID if _held_out(pair, old_share) else "old", pair)
            for part in ("valid", "test", OLD_VALID):
                for pair in filter(_filled, self._pairs(part)):
                    write(part, pair)
        dropped = dropped_pairs(keep.report)
        if not counts["train"]:
            raise DataError(f"no training pair is left after filtering: {dropped}; loosen [data.filters]")
        self._refuse_untaught(sizes)
        if self.init and counts["train"] < FEWEST:
            usable = "1 usable pair" if counts["train"] == 1 else f"{counts['train']} usable pairs"
            raise DataError(
                f"data.train has {usable} ({dropped or 'none was dropped'}); "
                f"to adapt a model give at least {FEWEST}, better 500"
            )
        report: dict[str, int] = {**keep.report, **{part: counts[part] for part in PAIR_PARTS}}
        if others:
            report[OTHER] = others
        (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")
        (folder / SIZES).write_text(json.dumps(sizes), encoding="utf-8")

    def _refuse_untaught(self, sizes: Sequence[int]) -> None:
        """Refuse a language without a training pair."""
        taught = [corpus for corpus, size in zip(self.data.corpora("train"), sizes, strict=True) if size]
        for side, codes in {"source": self.data.sources, "target": self.data.targets}.items():
            if missing := [code for code in codes if code not in {getattr(corpus, side) for corpus in taught}]:
                raise DataError(f"data.{side}: no training pair for {', '.join(missing)}; give some, or leave it out")

    def _pairs(self, part: PairPart) -> Iterator[Pair]:
        return chain.from_iterable(self._read(part, corpus) for corpus in self.data.corpora(part))

    def _read(self, part: PairPart, corpus: CorpusSection) -> Iterator[Pair]:
        target = corpus.target
        language = corpus.source if len(self.data.sources) > 1 else ""
        for pair in self._of_corpus(part, corpus):
            plain = not pair.style or (part == "train" and self._without_style(pair))
            to = target if plain else styled(target, pair.style)
            yield Pair(pair.source, pair.target, pair.links, to, pair.possible, source_language=language)

    def _of_corpus(self, part: PairPart, corpus: CorpusSection) -> Iterator[Pair]:
        source, target, path = corpus.source, corpus.target, corpus.path
        if corpus.lines:
            return read_two_files(corpus.lines, path)
        if path == PHRASEBOOK:
            return self._phrases(part, source, target)
        options: dict[str, Any] = {"style": corpus.style, "others": self._several}
        if corpus.swap:
            return (pair.swapped() for pair in read_pairs(path, target, source, **options))
        return read_pairs(path, source, target, **options)

    def _unusable(self, part: PairPart) -> int:
        """How many lines of files with several languages have no pair of those that are trained."""
        directions: dict[str, list[tuple[str, str]]] = {}
        for corpus in self.data.corpora(part):
            if format_of(Path(corpus.path)) == ".jsonl" and not corpus.lines:
                directions.setdefault(corpus.path, []).append((corpus.source, corpus.target))
        return sum(unusable_lines(path, each) for path, each in directions.items()) if self._several else 0

    @property
    def _several(self) -> bool:
        return len(self.data.sources) * len(self.data.targets) > 1

    def _phrases(self, part: PairPart, source: str, target: str) -> Iterator[Pair]:
        book, drawn = self.data.phrasebook, PHRASEBOOK_PARTS[part]
        count = {"train": book.count, "valid": book.valid_count, "test": book.test_count}[drawn]
        return spoken(
            source,
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

    def _share(self, part: PairPart, poll: Poll) -> float:
        """The share of pairs that is held out for validation; few pairs are read twice, to count them."""
        if self.data.split is not None:
            return self.data.split
        aim, count = HELD_OUT + HELD_OUT // 5, 0  # hashes find some more or some less
        for _ in islice(PairFilter(self.data.filters)(self._pairs(part)), aim * SELDOM):
            poll()
            count += 1
        return min(1 / OFTEN, max(1 / SELDOM, aim / max(count, 1)))


def _held_out(pair: Pair, share: float) -> bool:
    """Whether a pair is in the share held out for validation; all translations of a source are, or none."""
    return share > 0 and split_by_hash(pair.source, {"train": 1.0 - share, "valid": share}) == "valid"


def spoken(source: str, target: str, **drawn: Any) -> Iterator[Pair]:
    """Pairs of the phrasebook, which is written from English, in either direction."""
    if same_language(target, ENGLISH):
        return (pair.swapped() for pair in phrases(source, **drawn))
    return phrases(target, **drawn)


def held_out_of_run(folder: Path, to: str = "") -> list[Pair]:
    """The test pairs of a run, or else those it was validated on; only those into `to`, if it is given."""
    for part in ("test", "valid"):
        file = PairFile(folder / DATA / f"{part}.jsonl")
        pairs = [pair for pair in file if not to or pair.to == to] if file.path.is_file() else []
        if pairs:
            return pairs
    return []


def _filled(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())
