"""An encoded corpus in memory-mapped files, so that a corpus larger than memory trains."""

from __future__ import annotations

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.batch import Ids
from regard.data.formats.pairs import Pair
from regard.data.tokenizers.pair import PairTokenizer
from regard.errors import DataError

INDEX = "store.json"
IDS = ("source", "target")
TEXTS = ("source_text", "target_text", "to")
LINKS = "links"
ROWS = 1000  # written at once
LOOKED_AT, LOOKS = 1 << 20, 64  # values that are counted at once, and how often
KEPT = 1 << 26  # bytes of a file that may stay in memory once they were read
T = TypeVar("T")


class EncodedPair(NamedTuple):
    """A pair as ids, and as the text it came from where segmentations are to be sampled again."""

    source: Ids
    target: Ids
    text: Pair | None = None


@dataclass(frozen=True)
class Column:
    """Rows of different lengths in one flat array: row i lies between offsets i and i + 1."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def share(self, value: int) -> float:
        """How much of the array is one value; of a large one, by parts that are evenly spread over it."""
        parts = range(0, len(self.values), max(LOOKED_AT, len(self.values) // LOOKS))
        seen = [self.values[first : first + LOOKED_AT] for first in parts]
        found = sum(int(np.count_nonzero(part == value)) for part in seen)
        self.let_go()
        return found / max(1, sum(map(len, seen)))

    def let_go(self) -> None:
        """Give back the memory of what was read, where it is much: the kernel maps 16 pages for each that is touched,
        so reading here and there would soon hold the whole file."""
        for view in (self.values.base, self.offsets.base):
            mapped = view.obj if isinstance(view, memoryview) else None
            if isinstance(mapped, mmap.mmap) and len(mapped) > KEPT and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


class PairStore:
    """Token ids (and, when kept, texts) of a corpus of pairs, read from disk page by page as they are needed."""

    def __init__(self, folder: Path, columns: dict[str, Column]) -> None:
        self.folder = folder
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns["source"].offsets) - 1

    def __reduce__(self) -> tuple[Callable[[Path], PairStore], tuple[Path]]:
        return PairStore.open, (self.folder,)  # a loader's worker maps the files itself

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
        """How much of each side is one token."""
        return {side: self._columns[side].share(value) for side, value in zip(IDS, (source, target), strict=True)}

    def let_go(self) -> None:
        """Give back the memory of what was read of a large corpus."""
        for column in self._columns.values():
            column.let_go()

    @property
    def has_links(self) -> bool:
        return LINKS in self._columns

    def links(self, row: int) -> NDArray[np.integer[Any]]:
        """Positions (source, target) of tokens that translate each other, where `has_links`."""
        return self._columns[LINKS][row].reshape(-1, 2)

    def add_links(self, links: Iterable[NDArray[np.integer[Any]]]) -> PairStore:
        """Put the linked positions of every pair beside its ids; the store knows them only when all are on disk."""
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
        """Write a corpus as it streams by; the folder appears, or is replaced, only when all of it is on disk.

        `vocabulary` is the number of different ids: below 65,537 two bytes hold one.
        """
        dtype = "<u2" if vocabulary <= 1 << 16 else "<i4"
        dtypes = dict.fromkeys(IDS, dtype) | (dict.fromkeys(TEXTS, "u1") if keep_text else {})
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
        shutil.rmtree(temporary, ignore_errors=True)  # of a killed process that had the same number
        try:
            temporary.mkdir()
            _write_columns(temporary, dtypes, (_row(pair, keep_text) for pair in pairs))
            shutil.rmtree(folder, ignore_errors=True)
            temporary.rename(folder)
        except OSError as error:
            raise DataError(f"cannot write the encoded corpus to {folder}: {error}; check the disk.") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> PairStore:
        """Map the files of a written store."""
        try:
            index = json.loads((folder / INDEX).read_text())
            columns = {
                name: Column(
                    map_values(folder / f"{name}.bin", dtype, index["lengths"][name]),
                    map_values(folder / f"{name}.offsets", "<i8", index["rows"] + 1),
                )
                for name, dtype in index["dtypes"].items()
            }
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} is not a complete encoded corpus ({error}); encode it again.") from error
        return cls(folder, columns)


def encode_corpus(
    pairs: Iterable[Pair], tokenizer: PairTokenizer, folder: Path, *, chunk: int = 10_000, keep_text: bool = False
) -> PairStore:
    """Encode a corpus of any length, `chunk` pairs at a time; `keep_text` is for sampling segmentations later."""
    encoded = _encode(pairs, tokenizer, chunk)
    vocabulary = max(tokenizer.source.size, tokenizer.target.size)
    return PairStore.write(folder, encoded, vocabulary=vocabulary, keep_text=keep_text)


def _encode(pairs: Iterable[Pair], tokenizer: PairTokenizer, chunk: int) -> Iterator[EncodedPair]:
    stream = iter(pairs)
    while some := list(islice(stream, chunk)):
        sources = tokenizer.source.encode([pair.source for pair in some])
        targets = tokenizer.target_ids([pair.target for pair in some])
        for pair, source, target in zip(some, sources, targets, strict=True):
            yield EncodedPair([*tokenizer.tag(pair.to), *source, tokenizer.source.end], target, pair)


def _row(pair: EncodedPair, keep_text: bool) -> list[Ids]:
    if not keep_text:
        return [pair.source, pair.target]
    if pair.text is None:
        raise DataError("keep_text needs the text of every pair; a pair came without its text.")
    texts = (pair.text.source, pair.text.target, pair.text.to)
    return [pair.source, pair.target, *(text.encode("utf-8", "replace") for text in texts)]


class ColumnWriter:
    """Appends rows to the two files of a column; the offset of the first row is 0."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.name, self.dtype, self.length = name, dtype, 0
        self._values = (folder / f"{name}.bin").open("wb")
        self._offsets = (folder / f"{name}.offsets").open("wb")
        self._offsets.write(self.length.to_bytes(8, "little"))

    def write(self, rows: Iterable[Ids]) -> None:
        """Add rows as they stream by."""
        for some in _together(rows):
            self.extend(some)

    def extend(self, rows: Sequence[Ids]) -> None:
        """Add some rows at once, which is several times faster than one by one."""
        ends = np.cumsum([len(row) for row in rows], dtype="<i8") + self.length
        total = int(ends[-1]) - self.length
        values = np.fromiter(chain.from_iterable(rows), dtype=self.dtype, count=total)
        self._values.write(values.tobytes())
        self._offsets.write(ends.tobytes())
        self.length += total

    def close(self) -> None:
        for file in (self._values, self._offsets):
            with file:
                file.flush()
                os.fsync(file.fileno())


def _together(rows: Iterable[T]) -> Iterator[list[T]]:
    stream = iter(rows)
    while some := list(islice(stream, ROWS)):
        yield some


def _write_columns(folder: Path, dtypes: dict[str, str], rows: Iterable[list[Ids]]) -> None:
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(ColumnWriter(folder, name, dtype))) for name, dtype in dtypes.items()]
        for some in _together(rows):
            count += len(some)
            for writer, column in zip(writers, zip(*some, strict=True), strict=True):
                writer.extend(column)
    lengths = {writer.name: writer.length for writer in writers}
    (folder / INDEX).write_text(json.dumps({"rows": count, "dtypes": dtypes, "lengths": lengths}))


def map_values(path: Path, dtype: str, length: int) -> NDArray[Any]:
    """The values of a file, read from disk page by page as they are needed."""
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {expected}")
    if length == 0:
        return np.empty(0, dtype=dtype)  # an empty file cannot be mapped
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)
