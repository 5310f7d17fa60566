"""An encoded corpus in memory-mapped files, so that a corpus larger than memory trains."""

from __future__ import annotations

import json
import os
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.batch import Ids
from regard.data.columns import Column, ColumnWriter, MappedStore, in_groups, write_columns
from regard.data.formats.pairs import Pair
from regard.data.loader import worker_context
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import DataError

INDEX = "store.json"
IDS = ("source", "target")
TEXTS = ("source_text", "target_text", "to")
LINKS = "links"
T = TypeVar("T")


class EncodedPair(NamedTuple):
    """A pair as ids and, if segmentations will be sampled again, as text."""

    source: Ids
    target: Ids
    text: Pair | None = None


class PairStore(MappedStore):
    """Token ids (and, when kept, texts) of a corpus of pairs, read from disk page by page as they are needed."""

    about, contents = INDEX, "pairs"
    expected = "a complete encoded corpus ({error}); encode it again."

    def __init__(self, folder: Path, columns: dict[str, Column]) -> None:
        self.folder = folder
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["source"].offsets) - 1

    @property
    def has_text(self) -> bool:
        return TEXTS[0] in self._columns

    def lengths(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Tokens of each source and of each target, tags and end tokens included."""
        return self._columns["source"].lengths(), self._columns["target"].lengths()

    def pair(self, row: int) -> tuple[Ids, Ids]:
        """Source and target ids of one pair."""
        return self._columns["source"][row], self._columns["target"][row]

    def text(self, row: int) -> Pair:
        """The pair as text, where `has_text`."""
        source, target, to = (self._columns[name][row].tobytes().decode() for name in TEXTS)
        return Pair(source, target, to=to)

    def shares(self, source: int, target: int) -> dict[str, float]:
        """The share of one token on each side."""
        return {side: self._columns[side].share(value) for side, value in zip(IDS, (source, target), strict=True)}

    def let_go(self) -> None:
        """Release the pages of a large corpus from memory."""
        for column in self._columns.values():
            column.let_go()

    @property
    def has_links(self) -> bool:
        return LINKS in self._columns

    def links(self, row: int) -> NDArray[np.integer[Any]]:
        """Positions (source, target) of tokens that translate each other, where `has_links`."""
        return self._columns[LINKS][row].reshape(-1, 2)

    def add_links(self, links: Iterable[NDArray[np.integer[Any]]]) -> PairStore:
        """Store the linked positions of every pair beside its ids; they become visible when all are on disk."""
        index = json.loads((self.folder / INDEX).read_text())
        with closing(ColumnWriter(self.folder, LINKS, "<i4")) as writer:
            writer.write(row.ravel() for row in links)
        index["dtypes"][LINKS], index["lengths"][LINKS] = writer.dtype, writer.length
        temporary = self.folder / f"{INDEX}.new"
        temporary.write_text(json.dumps(index))
        temporary.replace(self.folder / INDEX)
        return PairStore.open(self.folder)

    @classmethod
    def write(
        cls, folder: Path, pairs: Iterable[EncodedPair], *, vocabulary: int, keep_text: bool = False
    ) -> PairStore:
        """Write a stream of pairs; the folder appears, or is replaced, only when all of it is on disk.

        `vocabulary` is the number of different ids: below 65,537 two bytes hold one.
        """
        dtype = "<u2" if vocabulary <= 1 << 16 else "<i4"
        dtypes = dict.fromkeys(IDS, dtype) | (dict.fromkeys(TEXTS, "u1") if keep_text else {})
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process with the same process id
        try:
            temporary.mkdir()
            count, lengths = write_columns(temporary, (_row(pair, keep_text) for pair in pairs), dtypes)
            (temporary / INDEX).write_text(json.dumps({"rows": count, "dtypes": dtypes, "lengths": lengths}))
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
        except OSError as error:
            raise DataError(f"cannot write the encoded corpus to {folder}: {error}; check the disk.") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> PairStore:
        columns = {
            name: Column.open(folder, name, dtype, about["lengths"][name], about["rows"])
            for name, dtype in about["dtypes"].items()
        }
        return cls(folder, columns)


def encode_corpus(
    pairs: Iterable[Pair],
    tokenizer: PairTokenizer,
    folder: Path,
    *,
    chunk: int = 10_000,
    keep_text: bool = False,
    workers: int = 0,
) -> PairStore:
    """Encode a corpus of any length, `chunk` pairs at a time, in as many processes as there are `workers`.

    `keep_text` is for sampling segmentations later.
    """
    encoded = chain.from_iterable(_encoded_chunks(in_groups(pairs, chunk), tokenizer, workers))
    vocabulary = max(tokenizer.source.size, tokenizer.target.size)
    return PairStore.write(folder, encoded, vocabulary=vocabulary, keep_text=keep_text)


def _encoded_chunks(
    chunks: Iterable[list[Pair]], tokenizer: PairTokenizer, workers: int
) -> Iterator[list[EncodedPair]]:
    if not workers:
        yield from (_encode(some, tokenizer) for some in chunks)
        return
    under_way: deque[Future[list[EncodedPair]]] = deque()
    with ProcessPoolExecutor(workers, worker_context(), _keep_tokenizer, (tokenizer,)) as pool:
        for some in chunks:
            under_way.append(pool.submit(_encode_in_worker, some))
            if len(under_way) > 2 * workers:  # no more of a long corpus is in memory
                yield under_way.popleft().result()
        yield from (each.result() for each in under_way)


def _encode(pairs: Sequence[Pair], tokenizer: PairTokenizer) -> list[EncodedPair]:
    sources = tokenizer.source.encode([pair.source for pair in pairs])
    targets = tokenizer.target_ids([pair.target for pair in pairs])
    return [
        EncodedPair([*tokenizer.tag(pair.to), *source, tokenizer.source.end], target, pair)
        for pair, source, target in zip(pairs, sources, targets, strict=True)
    ]


_tokenizers: list[PairTokenizer] = []  # the tokenizer of a worker


def _keep_tokenizer(tokenizer: PairTokenizer) -> None:
    _tokenizers[:] = [tokenizer]


def _encode_in_worker(pairs: list[Pair]) -> list[EncodedPair]:
    return _encode(pairs, _tokenizers[0])


def _row(pair: EncodedPair, keep_text: bool) -> list[Ids]:
    if not keep_text:
        return [pair.source, pair.target]
    if pair.text is None:
        raise DataError("keep_text needs the text of every pair; a pair came without its text.")
    texts = (pair.text.source, pair.text.target, pair.text.to)
    return [pair.source, pair.target, *(text.encode("utf-8", "replace") for text in texts)]
