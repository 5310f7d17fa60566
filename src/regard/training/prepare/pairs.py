"""From the recipe's files to an encoded corpus: read, filter, report, learn a tokenizer, encode; once per run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from regard.data.formats.filters import PairFilter, split_by_hash
from regard.data.formats.pairs import Pair, read_pairs
from regard.data.synthetic.phrasebook import phrases
from regard.data.text.pair_store import PairStore, encode_corpus
from regard.data.text.word_aligner import Aligner
from regard.data.tokenizers.pair import PairTokenizer, train_pair_tokenizer
from regard.errors import DataError
from regard.training.prepare.stages import Stages
from regard.training.recipe.recipes import Recipe
from regard.training.recipe.sections import PHRASEBOOK
from regard.training.safeguards import Poll

Part = Literal["train", "valid", "test"]
PARTS: tuple[Part, ...] = ("train", "valid", "test")
REPORT = "report.json"
SORTED = "train.jsonl"
LEARNT_FROM = 250_000  # pairs, evenly spread, that a tokenizer is learnt from at most


@dataclass(frozen=True)
class Corpus:
    """What a translator learns from and is measured on; `report` counts the pairs kept, and dropped by reason."""

    tokenizer: PairTokenizer
    train: PairStore
    valid: list[Pair]
    test: list[Pair]
    report: dict[str, int]


@dataclass(frozen=True)
class PairFile:
    """Pairs in a file of our own, read anew each time they are iterated over."""

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
    """One of every `step` pairs, read anew each time they are iterated over."""

    pairs: Iterable[Pair]
    step: int

    def __iter__(self) -> Iterator[Pair]:
        return islice(self.pairs, 0, None, self.step)


def _tuples(links: list[list[int]] | None) -> tuple[tuple[int, int], ...] | None:
    return None if links is None else tuple((source, target) for source, target in links)


def prepare(recipe: Recipe, folder: Path, poll: Poll) -> Corpus:
    """The corpus of a recipe, from `folder` where it was prepared before."""
    if not folder.exists():
        _write(recipe, folder, poll)
    return Corpus(
        PairTokenizer.load(folder / "tokenizer"),
        PairStore.open(folder / "train"),
        list(PairFile(folder / "valid.jsonl")),
        list(PairFile(folder / "test.jsonl")),
        json.loads((folder / REPORT).read_text(encoding="utf-8")),
    )


def _write(recipe: Recipe, folder: Path, poll: Poll) -> None:
    stages = Stages(folder)
    texts = stages.once("texts", lambda place: _sort_into_files(recipe, place, poll))
    train = PairFile(texts / SORTED)
    count = json.loads((texts / REPORT).read_text(encoding="utf-8"))["train"]

    def learn(place: Path) -> None:
        some = EveryNth(train, -(-count // LEARNT_FROM))
        tokenizer = train_pair_tokenizer(some, recipe.tokenizer, recipe.data.source, recipe.data.targets)
        tokenizer.save(place / "tokenizer")

    tokenizer = PairTokenizer.load(stages.once("vocabulary", learn) / "tokenizer")
    poll()

    def encode(place: Path) -> None:
        store = encode_corpus(train, tokenizer, place / "train", keep_text=recipe.tokenizer.dropout > 0)
        if recipe.training.guide:
            store.add_links(Aligner(store, max(tokenizer.source.size, tokenizer.target.size), poll).links(store))

    stages.once("tokens", encode)
    stages.gather(SORTED)


def _sort_into_files(recipe: Recipe, folder: Path, poll: Poll) -> None:
    """Read every source once, since drawing or parsing it may take long; count what is kept and what is not."""
    keep, counts = PairFilter(recipe.data.filters), Counter[str]()
    with ExitStack() as stack:
        files = {part: stack.enter_context(PairFile(folder / f"{part}.jsonl").writer()) for part in PARTS}
        for pair in keep(_pairs(recipe, "train")):
            poll()
            part = _part(recipe, pair)
            files[part](pair)
            counts[part] += 1
        for part in PARTS[1:]:
            for pair in filter(_filled, _pairs(recipe, part)):
                poll()
                files[part](pair)
                counts[part] += 1
    if not counts["train"]:
        raise DataError(f"no training pair is left after filtering: {keep.report}; loosen [data.filters]")
    report: dict[str, int] = {**keep.report, **{part: counts[part] for part in PARTS}}
    (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")


def _pairs(recipe: Recipe, part: Part) -> Iterator[Pair]:
    for target in recipe.data.targets:
        path = recipe.data.path(part, target)
        if path:
            for pair in _of_target(recipe, part, path, target):
                yield Pair(pair.source, pair.target, pair.links, target, pair.possible)


def _of_target(recipe: Recipe, part: Part, path: str, target: str) -> Iterator[Pair]:
    if path != PHRASEBOOK and recipe.data.swap:
        return (Pair(pair.target, pair.source) for pair in read_pairs(path, target, recipe.data.source))
    if path != PHRASEBOOK:
        return read_pairs(path, recipe.data.source, target)
    book = recipe.data.phrasebook
    count = {"train": book.count, "valid": book.valid_count, "test": book.test_count}[part]
    return phrases(
        target,
        part=part,
        count=count,
        seed=recipe.seed,
        min_words=book.min_words,
        max_words=book.max_words,
        everyday=book.everyday,
    )


def _part(recipe: Recipe, pair: Pair) -> Part:
    """Without validation data a share of the training data is set aside, all translations of a source together."""
    if recipe.data.valid:
        return "train"
    shares = {"train": 1.0 - recipe.data.split, "valid": recipe.data.split}
    return "valid" if split_by_hash(pair.source, shares) == "valid" else "train"


def _filled(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())
