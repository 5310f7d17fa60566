"""Sequences in FASTA files, and alignments in A3M or aligned FASTA files; all may be compressed (.gz)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int, Int8

from regard.data.formats.lines import read_lines, refuse
from regard.data.proteins.alphabet import GAP, decode, encode, read_residues
from regard.errors import DataError

SUFFIXES = (".fasta", ".fa", ".faa", ".a3m")
SHOWN = 12  # letters that name a sequence without a name
LONGEST_NAME = 255  # characters; operating systems reject longer file names
LONGEST = 100_000  # residues of one sequence; the longest known protein has about 36,000


class Record(NamedTuple):
    """A sequence as a file has it, line ends removed, and the line of its header."""

    name: str
    description: str
    sequence: str
    line: int


class Protein(NamedTuple):
    """A sequence of the 20 letters and X, and what was changed while it was read, in words."""

    name: str
    sequence: str
    told: tuple[str, ...] = ()


def is_fasta(path: str | Path) -> bool:
    """Whether a file is FASTA, by its name."""
    return str(path).removesuffix(".gz").endswith(SUFFIXES)


def given_proteins(given: str | Path | bytes, name: str = "") -> list[Protein]:
    """The proteins that a user gives: a FASTA file, its bytes, or one sequence as a text.

    `name` names bytes in errors. A sequence without a name is called by its beginning.
    """
    if isinstance(given, bytes):
        if given.lstrip().startswith(b">"):
            return list(read_proteins(BytesIO(given), name or "the file"))
        given = given.decode("utf-8", "replace")
    elif isinstance(given, Path) or (len(given) <= LONGEST_NAME and (is_fasta(given) or Path(given).is_file())):
        return list(read_proteins(given))
    text = str(given).strip()
    beginning = text if len(text) <= SHOWN else f"{text[: SHOWN - 2]}…"
    found = read_residues(text, beginning or "the sequence")
    return [Protein(beginning, found.sequence, found.told)]


def read_fasta(path: str | Path | IO[bytes], name: str = "") -> Iterator[Record]:
    """The records of a file or of an open one, one at a time; their letters are not checked."""
    name = name or str(path)
    header, line, pieces, length = "", 0, list[str](), 0
    for number, text in enumerate(read_lines(path, refuse), 1):
        if text.startswith(">"):
            if line:
                yield _record(name, header, line, pieces)
            header, line, pieces, length = text[1:].strip(), number, [], 0
        elif stripped := text.strip():
            if not line:
                raise DataError(f"{name}, line {number}: {text[:40]!r} is before the first header; FASTA starts with >")
            pieces.append(stripped)
            length += len(stripped)
            if length > LONGEST:
                raise DataError(f"{name}, line {number}: the sequence of line {line} is longer than {LONGEST:,}")
    if not line:
        raise DataError(f"{name}: has no sequence; FASTA has lines >NAME, each followed by its sequence")
    yield _record(name, header, line, pieces)


def _record(file: str, header: str, line: int, pieces: list[str]) -> Record:
    name, _, description = header.partition(" ")
    if not name:
        raise DataError(f"{file}, line {line}: the sequence has no name; write it after >")
    if not pieces:
        raise DataError(f"{file}, line {line}: {name} has no sequence")
    return Record(name, description.strip(), "".join(pieces), line)


def read_proteins(path: str | Path | IO[bytes], name: str = "") -> Iterator[Protein]:
    """The sequences of a FASTA file, one at a time; `name` names an open one in errors."""
    for record in read_fasta(path, name):
        found = read_residues(record.sequence, f"{name or path}, line {record.line}, {record.name}")
        yield Protein(record.name, found.sequence, found.told)


@dataclass(frozen=True, eq=False)
class Alignment:
    """Sequences over the residues of the first, which is the query.

    `rows` has the numbers of letters (gap 21); `deletions` counts the residues of a row that were left out before each
    column, since the query has none there.
    """

    names: list[str]
    rows: Int8[np.ndarray, "N L"]
    deletions: Int[np.ndarray, "N L"]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def query(self) -> str:
        """The sequence of the query."""
        return decode(self.rows[0])

    def first(self, count: int) -> Alignment:
        """The first rows."""
        return Alignment(self.names[:count], self.rows[:count], self.deletions[:count])


def read_alignment(path: str | Path, most: int | None = None) -> Alignment:
    """The alignment in a file, or its first rows.

    In A3M, lower-case letters are insertions between columns. In aligned FASTA all rows are equally long, in whatever
    case. Columns in which the query has a gap are left out.
    """
    records = list(islice(read_fasta(path), most))
    matched = [_without_insertions(record.sequence) for record in records]
    a3m = len({len(row) for row in matched}) == 1
    if not a3m and len({len(record.sequence) for record in records}) > 1:
        first, wrong = next(
            (records[0], record)
            for record, row in zip(records, matched, strict=True) if len(row) != len(matched[0])
        )  # fmt: skip
        raise DataError(
            f"{path}, line {wrong.line}: {wrong.name} has {len(_without_insertions(wrong.sequence))} columns, but "
            f"{first.name} has {len(matched[0])}; expected A3M (insertions in lower case) or rows of one length"
        )
    query = matched[0] if a3m else records[0].sequence.replace(".", "-")
    kept = np.array([letter != "-" for letter in query], dtype=bool)
    if not kept.any():
        raise DataError(f"{path}, line {records[0].line}: the first row, the query, has no residue")
    rows, deletions = zip(*(_row(record, kept, a3m, path) for record in records), strict=True)
    return Alignment([record.name for record in records], np.stack(rows), np.stack(deletions))


def _without_insertions(sequence: str) -> str:
    return "".join(letter for letter in sequence if not letter.islower() and letter != ".")


def _row(record: Record, kept: np.ndarray, a3m: bool, path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a row at the kept columns, and how many of its residues were left out before each."""
    text = record.sequence if not a3m else record.sequence.replace(".", "")
    places = [not letter.islower() for letter in text] if a3m else [True] * len(text)
    is_column = np.array(places, dtype=bool)
    written = read_residues(text.replace(".", "-"), f"{path}, line {record.line}, {record.name}", gaps=True)
    numbers = encode(written.sequence)
    stays = is_column.copy()
    stays[is_column] = kept
    skipped = np.cumsum(~stays & (numbers != GAP))[stays]
    return numbers[stays].astype(np.int8), np.diff(skipped, prepend=0).astype(np.int32)
