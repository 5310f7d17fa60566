"""A text as one long row of tokens in a memory-mapped file, and its blocks for language models."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from regard.data.batch import Ids, StreamBatch, TextBatch, pad_rows
from regard.data.columns import Column, ColumnWriter, MappedStore, map_values
from regard.data.loader import Place, Rows

INDEX, IDS, DOCUMENTS = "text.json", "ids", "documents"


class EncodedLine(NamedTuple):
    """The tokens of a line, and whether a document begins with it."""

    ids: Ids
    first: bool


@dataclass(frozen=True)
class TokenStore(MappedStore):
    """Token ids of a text, line after line, read from disk page by page as they are needed."""

    about, contents = INDEX, "lines"
    expected = "a complete encoded text ({error}); encode it again."

    folder: Path
    lines: Column
    documents: NDArray[np.int64]  # the number of the first line of each document, and the number of lines

    @property
    def tokens(self) -> NDArray[Any]:
        """All tokens in a row."""
        return self.lines.values

    @classmethod
    def write(cls, folder: Path, lines: Iterable[EncodedLine], *, vocabulary: int) -> TokenStore:
        """Write a stream of lines into a new folder; an id takes two bytes if the vocabulary has at most 65,536."""
        folder.mkdir(parents=True)
        dtype, count, documents = "<u2" if vocabulary <= 1 << 16 else "<i4", 0, 0
        with (
            closing(ColumnWriter(folder, IDS, dtype)) as writer,
            (folder / f"{DOCUMENTS}.bin").open("wb") as beginnings,
        ):

            def ids() -> Iterator[Ids]:
                nonlocal count, documents
                for line in lines:
                    if line.first or not count:
                        beginnings.write(count.to_bytes(8, "little"))
                        documents += 1
                    count += 1
                    yield line.ids

            writer.write(ids())
            beginnings.write(count.to_bytes(8, "little"))
        about = {"dtype": dtype, "lines": count, "tokens": writer.length, "documents": documents}
        (folder / INDEX).write_text(json.dumps(about))
        return cls.open(folder)

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> TokenStore:
        lines = Column.open(folder, IDS, about["dtype"], about["tokens"], about["lines"])
        return cls(folder, lines, map_values(folder / f"{DOCUMENTS}.bin", "<i8", about["documents"] + 1))


def block_starts(tokens: int, block: int, first: int = 0) -> Rows:
    """The starts of blocks in which every token but the text's first is predicted once. `first` may be up to a block
    before the text; the first block is then shorter."""
    return np.arange(first, max(tokens - 1, first), block)


def plan_blocks(tokens: int, block: int, *, batch_tokens: int, seed: int, epoch: int) -> list[Rows]:
    """The blocks of each batch of an epoch; every epoch has other block boundaries and another order."""
    rng = np.random.default_rng([seed, epoch])
    starts = block_starts(tokens, block, -int(rng.integers(block)))
    return split_rows(rng.permutation(starts), max(1, batch_tokens // block))


def plan_streams(tokens: int, block: int, streams: int, first: int = 0) -> list[Rows]:
    """The start and end of each batch [streams, 2] in streams of equal length that are read in parallel. Every token
    but the text's first is predicted once; the first batch has `first` tokens per stream, the others a block."""
    streams = max(1, min(streams, tokens - 1))
    length = -(-(tokens - 1) // streams)
    cuts = [0, *range(first or block, length, block), length]
    beginnings = length * np.arange(streams)[:, None]
    return [np.minimum(beginnings + cuts[i : i + 2], tokens - 1) for i in range(len(cuts) - 1)]


def split_rows(rows: Rows, size: int) -> list[Rows]:
    """Rows in groups of one size; the last may be smaller."""
    return np.split(rows, range(size, len(rows), size)) if len(rows) else []


@dataclass(frozen=True)
class NextTokens:
    """Makes batches of blocks whose labels are the next tokens."""

    store: TokenStore
    block: int

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> TextBatch:
        tokens = self.store.tokens
        cut = [tokens[max(row, 0) : row + self.block + 1] for row in rows.tolist()]
        inputs, mask = pad_rows([ids[:-1] for ids in cut], 0)
        labels, _ = pad_rows([ids[1:] for ids in cut], 0)
        self.store.lines.let_go()
        return TextBatch(inputs, mask, labels, mask)


@dataclass(frozen=True)
class NextInStreams:
    """Makes the batches of `plan_streams`."""

    store: TokenStore

    def __call__(self, rows: Rows, place: Place = (0, 0)) -> StreamBatch:
        tokens = self.store.tokens
        inputs, mask = pad_rows([tokens[begin:end] for begin, end in rows.tolist()], 0)
        labels, _ = pad_rows([tokens[begin + 1 : end + 1] for begin, end in rows.tolist()], 0)
        self.store.lines.let_go()
        return StreamBatch(inputs, labels, mask, torch.full((len(rows),), place[1] == 0))


def document_ranges(store: TokenStore) -> Iterator[tuple[int, int]]:
    """The first line of each document and the line after its last."""
    return zip(store.documents[:-1].tolist(), store.documents[1:].tolist(), strict=True)
