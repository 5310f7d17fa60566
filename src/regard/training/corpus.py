"""From the recipe's files to an encoded corpus: read, filter, report, learn a tokenizer, encode; once per run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from regard.checkpoints import write_folder
from regard.data.filters import PairFilter, split_by_hash
from regard.data.store import PairStore, encode_corpus
from regard.data.text import Pair, read_pairs
from regard.data.tokenizers import PairTokenizer, train_pair_tokenizer
from regard.errors import DataError
from regard.training.recipe import PHRASEBOOK, Recipe

Part = Literal["train", "valid", "test"]
REPORT = "report.json"


@dataclass(frozen=True)
class Corpus:
    """What a translator learns from and is measured on; `report` counts the pairs kept, and dropped by reason."""

    tokenizer: PairTokenizer
    train: PairStore
    valid: list[Pair]
    test: list[Pair]
    report: dict[str, int]


def prepare(recipe: Recipe, folder: Path) -> Corpus:
    """The corpus of a recipe, from `folder` where it was prepared before."""
    if not folder.exists():
        write_folder(folder, lambda temporary: _write(recipe, temporary))
    return Corpus(
        PairTokenizer.load(folder / "tokenizer"),
        PairStore.open(folder / "train"),
        _read(folder / "valid.jsonl"),
        _read(folder / "test.jsonl"),
        json.loads((folder / REPORT).read_text(encoding="utf-8")),
    )


class _TrainPairs:
    """The filtered training pairs; may be read more than once, since corpora need not fit in memory."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.report: dict[str, int] = {}

    def __iter__(self) -> Iterator[Pair]:
        keep = PairFilter(self.recipe.data.filters)
        for pair in keep(_pairs(self.recipe, "train")):
            if _part(self.recipe, pair) == "train":
                yield pair
        self.report = keep.report


def _write(recipe: Recipe, folder: Path) -> None:
    train = _TrainPairs(recipe)
    tokenizer = train_pair_tokenizer(train, recipe.tokenizer, recipe.data.source, recipe.data.targets)
    tokenizer.save(folder / "tokenizer")
    store = encode_corpus(train, tokenizer, folder / "train", keep_text=recipe.tokenizer.dropout > 0)
    if not len(store):
        raise DataError(f"no training pair is left after filtering: {train.report}; loosen [data.filters]")
    held_out = {part: _save(_held_out(recipe, part), folder / f"{part}.jsonl") for part in ("valid", "test")}
    report = {**train.report, "train": len(store), **held_out}
    (folder / REPORT).write_text(json.dumps(report), encoding="utf-8")


def _pairs(recipe: Recipe, part: Part) -> Iterator[Pair]:
    for target in recipe.data.targets:
        path = recipe.data.path(part, target)
        if path:
            yield from (dataclasses.replace(pair, to=target) for pair in _of_target(recipe, part, path, target))


def _of_target(recipe: Recipe, part: Part, path: str, target: str) -> Iterator[Pair]:
    if path != PHRASEBOOK and recipe.data.swap:
        return (Pair(pair.target, pair.source) for pair in read_pairs(path, target, recipe.data.source))
    if path != PHRASEBOOK:
        return read_pairs(path, recipe.data.source, target)
    from regard.data.phrasebook import phrases

    book = recipe.data.phrasebook
    count = {"train": book.count, "valid": book.valid_count, "test": book.test_count}[part]
    return phrases(target, part=part, count=count, seed=recipe.seed, min_words=book.min_words, max_words=book.max_words)


def _held_out(recipe: Recipe, part: Literal["valid", "test"]) -> Iterator[Pair]:
    if part == "valid" and not recipe.data.valid:
        return (pair for pair in _pairs(recipe, "train") if _part(recipe, pair) == "valid" and _filled(pair))
    return (pair for pair in _pairs(recipe, part) if _filled(pair))


def _part(recipe: Recipe, pair: Pair) -> str:
    """Without validation data a share of the training data is set aside, all translations of a source together."""
    share = 0.0 if recipe.data.valid else recipe.data.split
    return split_by_hash(pair.source, {"train": 1.0 - share, "valid": share})


def _filled(pair: Pair) -> bool:
    return bool(pair.source.strip() and pair.target.strip())


def _save(pairs: Iterable[Pair], path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for count, pair in enumerate(pairs, 1):  # noqa: B007
            file.write(json.dumps([pair.source, pair.target, pair.to], ensure_ascii=False) + "\n")
    return count


def _read(path: Path) -> list[Pair]:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)
    return [Pair(source, target, to=to) for source, target, to in rows]
