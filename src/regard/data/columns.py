"""Examples of any kind as rows of whole numbers, one memory-mapped column for each part of an example."""

from __future__ import annotations

import json
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from regard.data.batch import Ids
from regard.errors import DataError

ROWS = 1000  # rows written at once
LOOKED_AT, LOOKS = 1 << 20, 64  # a count of values samples at most about LOOKS parts of LOOKED_AT values
KEPT = 1 << 26  # files of more bytes than this are released from memory after reading
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """Rows of different lengths in one flat array: row i lies between offsets i and i + 1."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path, name: str, dtype: str, values: int, rows: int) -> Column:
        """Map the two files that a `ColumnWriter` wrote."""
        offsets = map_values(folder / f"{name}.offsets", "<i8", rows + 1)
        return cls(map_values(folder / f"{name}.bin", dtype, values), offsets)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def share(self, value: int) -> float:
        """The share of one value in the array; for a large array estimated from evenly spread parts."""
        parts = range(0, len(self.values), max(LOOKED_AT, len(self.values) // LOOKS))
        seen = [self.values[first : first + LOOKED_AT] for first in parts]
        found = sum(int(np.count_nonzero(part == value)) for part in seen)
        self.let_go()
        return found / max(1, sum(map(len, seen)))

    def let_go(self) -> None:
        """Release the pages of a large file from memory. The kernel maps 16 pages for each page that is touched, so
        random reads would soon hold the whole file."""
        for view in (self.values.base, self.offsets.base):
            mapped = view.obj if isinstance(view, memoryview) else None
            if isinstance(mapped, mmap.mmap) and len(mapped) > KEPT and hasattr(mmap, "MADV_DONTNEED"):
                mapped.madvise(mmap.MADV_DONTNEED)


class ColumnWriter:
    """Appends rows to the two files of a column; the offset of the first row is 0."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.name, self.dtype, self.length = name, dtype, 0
        self._values = (folder / f"{name}.bin").open("wb")
        self._offsets = (folder / f"{name}.offsets").open("wb")
        self._offsets.write(self.length.to_bytes(8, "little"))

    def write(self, rows: Iterable[Ids]) -> None:
        """Add rows as they stream by."""
        for some in in_groups(rows):
            self.extend(some)

    def extend(self, rows: Sequence[Ids]) -> None:
        """Add some rows at once, which is several times faster than one by one."""
        ends = np.cumsum([len(row) for row in rows], dtype="<i8") + self.length
        total = int(ends[-1]) - self.length
        if all(isinstance(row, np.ndarray) for row in rows):
            values = np.concatenate(rows).astype(self.dtype, copy=False)
        else:
            values = np.fromiter(chain.from_iterable(rows), dtype=self.dtype, count=total)
        self._values.write(values.tobytes())
        self._offsets.write(ends.tobytes())
        self.length += total

    def close(self) -> None:
        for file in (self._values, self._offsets):
            with file:
                file.flush()
                os.fsync(file.fileno())


def in_groups(rows: Iterable[T], size: int = ROWS) -> Iterator[list[T]]:
    """A stream of rows as lists of so many rows."""
    stream = iter(rows)
    while some := list(islice(stream, size)):
        yield some


def write_columns(folder: Path, rows: Iterable[Sequence[Ids]], dtypes: Mapping[str, str]) -> tuple[int, dict[str, int]]:
    """Write a stream of rows, each with a part for every column; returns how many there were, and the number of values
    of each column."""
    count = 0
    with ExitStack() as stack:
        writers = [stack.enter_context(closing(ColumnWriter(folder, name, dtype))) for name, dtype in dtypes.items()]
        for some in in_groups(rows):
            count += len(some)
            for writer, parts in zip(writers, zip(*some, strict=True), strict=True):
                writer.extend(parts)
    return count, {writer.name: writer.length for writer in writers}


def map_values(path: Path, dtype: str, length: int) -> NDArray[Any]:
    """The values of a file, read from disk page by page as they are needed."""
    expected = length * np.dtype(dtype).itemsize
    if path.stat().st_size != expected:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes instead of {expected}")
    if length == 0:
        return np.empty(0, dtype=dtype)  # an empty file cannot be mapped
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=dtype)


class MappedStore(ABC):
    """A store whose arrays are files of a folder, read page by page as they are needed."""

    about: ClassVar[str]  # the file that says how much there is
    contents: ClassVar[str]  # for messages
    expected: ClassVar[str] = "a complete set of {contents} ({error}); prepare it again"
    folder: Path

    def __reduce__(self) -> tuple[Callable[[Path], Self], tuple[Path]]:
        return type(self).open, (self.folder,)  # a loader's worker maps the files itself

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Map the files of a written store."""
        try:
            return cls.mapped(folder, json.loads((folder / cls.about).read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            expected = cls.expected.format(contents=cls.contents, error=error)
            raise DataError(f"{folder} is not {expected}") from error

    @classmethod
    @abstractmethod
    def mapped(cls, folder: Path, about: dict[str, Any]) -> Self:
        """The store in a folder, by how much there is of everything."""


INDEX = "examples.json"


@dataclass(frozen=True)
class ExampleStore:
    """Examples that are read from disk as they are needed; example i has row i of every column."""

    columns: tuple[Column, ...]

    def __len__(self) -> int:
        return len(self.columns[0].offsets) - 1

    def __getitem__(self, number: int) -> tuple[NDArray[Any], ...]:
        return tuple(column[number] for column in self.columns)

    def let_go(self) -> None:
        """Release the pages of large files from memory."""
        for column in self.columns:
            column.let_go()

    @classmethod
    def write(cls, folder: Path, examples: Iterable[tuple[NDArray[Any], ...]], dtypes: Mapping[str, str]) -> None:
        """Write a stream of examples into a new folder."""
        folder.mkdir(parents=True)
        count, lengths = write_columns(folder, examples, dtypes)
        about = {name: {"dtype": dtype, "values": lengths[name]} for name, dtype in dtypes.items()}
        (folder / INDEX).write_text(json.dumps({"examples": count, "columns": about}))

    @classmethod
    def open(cls, folder: Path) -> ExampleStore:
        """Map the files of a written store."""
        try:
            about = json.loads((folder / INDEX).read_text())
            columns = (
                Column.open(folder, name, column["dtype"], column["values"], about["examples"])
                for name, column in about["columns"].items()
            )
            return cls(tuple(columns))
        except (OSError, ValueError, KeyError) as error:
            raise DataError(f"{folder} has no complete examples ({error}); prepare them again") from error
