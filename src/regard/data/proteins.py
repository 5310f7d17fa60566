"""Proteins: amino acids as letters and numbers, sequences in FASTA files, alignments in A3M or aligned FASTA files.

Numbers are in the order of AlphaFold (Jumper et al. 2021). Databases also write U, O, B, Z, J and lower case.
`read_residues` replaces them and says so; anything else is an error that names its place. Files may be gzipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int, Int8

from regard.data.formats.lines import read_lines, refuse
from regard.errors import DataError

RESIDUES = "ARNDCQEGHILKMFPSTWYV"
UNKNOWN, GAP, MASK = 20, 21, 22
LETTERS = RESIDUES + "X-#"
SYMBOLS = len(LETTERS)
REPLACED = {
    "U": ("C", "selenocysteine read as cysteine"),
    "B": ("D", "aspartic acid or asparagine, read as aspartic acid"),
    "Z": ("E", "glutamic acid or glutamine, read as glutamic acid"),
    "O": ("X", "pyrrolysine, read as unknown"),
    "J": ("X", "leucine or isoleucine, read as unknown"),
}
EXPECTED = f"expected the letters of amino acids: {RESIDUES}, X for unknown, also U, B, Z, O, J and lower case"
ALLOWED, COMMON = frozenset(RESIDUES + "X" + "".join(REPLACED)), frozenset(RESIDUES + "-")
BASES, FEWEST_BASES = frozenset("ACGTUN"), 10  # of nucleic acids; so many are hardly a protein
_THREE = "ALAARGASNASPCYSGLNGLUGLYHISILELEULYSMETPHEPROSERTHRTRPTYRVALUNK"
NAMES = {letter: _THREE[3 * place : 3 * place + 3] for place, letter in enumerate(RESIDUES + "X")}

_NUMBERS = np.full(256, -1, dtype=np.int64)
_NUMBERS[[ord(letter) for letter in LETTERS]] = np.arange(SYMBOLS)


class Residues(NamedTuple):
    """A sequence of the 20 letters and X (and "-" where gaps are allowed), and what was changed to get it, in words."""

    sequence: str
    told: tuple[str, ...]


def read_residues(text: str, where: str = "", *, gaps: bool = False) -> Residues:
    """The residues of a written sequence; `where` names its place in errors."""
    written = "".join(text.split()).removesuffix("*")
    letters = written.upper()
    if strange := set(letters) - (ALLOWED | {"-"} if gaps else ALLOWED):
        place = min(letters.index(letter) for letter in strange)
        raise DataError(f"{where or 'the sequence'}: {written[place]!r} at residue {place + 1:,}; {EXPECTED}")
    if not letters.strip("-"):
        raise DataError(f"{where or 'the sequence'}: has no residue; {EXPECTED}")
    bases = len(letters) >= FEWEST_BASES and BASES.issuperset(letters)
    if letters == written and COMMON.issuperset(letters) and not bases:
        return Residues(letters, ())
    counts = Counter(letters)
    told = [f"{counts[letter]} {letter}: {reason}" for letter, (_, reason) in REPLACED.items() if counts[letter]]
    if bases:
        told.append("no letter but A, C, G, T, U, N: read as amino acids; if it is DNA or RNA, translate it first")
    if lower := sum(letter.islower() for letter in written):
        told.insert(0, f"{lower} in lower case")
    if counts["X"]:
        told.append(f"{counts['X']} X: unknown residues")
    plain = letters.translate({ord(letter): to for letter, (to, _) in REPLACED.items()})
    return Residues(plain, tuple(told))


def encode(sequence: str) -> Int[np.ndarray, L]:
    """The number of every letter of a sequence that `read_residues` returned."""
    return _NUMBERS[np.frombuffer(sequence.encode("latin-1"), dtype=np.uint8)]


def decode(numbers: Iterable[int]) -> str:
    """The letters of numbers."""
    return "".join(LETTERS[number] for number in numbers)


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


def read_alignment(path: str | Path, most: int | None = None) -> Alignment:
    """The alignment in a file, or its first rows.

    In A3M, lower-case letters are insertions between columns. In aligned FASTA all rows are equally long, in whatever
    case. Columns in which the query has a gap are left out.
    """
    records = list(islice(read_fasta(path), most))
    matched = ["".join(each for each in record.sequence if not each.islower() and each != ".") for record in records]
    a3m = len({len(row) for row in matched}) == 1
    if not a3m and len({len(record.sequence) for record in records}) > 1:
        columns = len(matched[0])
        wrong, row = next(pair for pair in zip(records, matched, strict=True) if len(pair[1]) != columns)
        raise DataError(
            f"{path}, line {wrong.line}: {wrong.name} has {len(row)} columns, but {records[0].name} has {columns}; "
            "expected A3M (insertions in lower case) or rows of one length"
        )
    query = matched[0] if a3m else records[0].sequence.replace(".", "-")
    kept = np.array([letter != "-" for letter in query], dtype=bool)
    if not kept.any():
        raise DataError(f"{path}, line {records[0].line}: the first row, the query, has no residue")
    rows, deletions = zip(*(_row(record, kept, a3m, path) for record in records), strict=True)
    return Alignment([record.name for record in records], np.stack(rows), np.stack(deletions))


def _row(record: Record, kept: np.ndarray, a3m: bool, path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of a row at the kept columns, and how many of its residues were left out before each."""
    text = record.sequence if not a3m else record.sequence.replace(".", "")
    is_column = np.array([not (a3m and letter.islower()) for letter in text], dtype=bool)
    written = read_residues(text.replace(".", "-"), f"{path}, line {record.line}, {record.name}", gaps=True)
    numbers = encode(written.sequence)
    stays = is_column.copy()
    stays[is_column] = kept
    skipped = np.cumsum(~stays & (numbers != GAP))[stays]
    return numbers[stays].astype(np.int8), np.diff(skipped, prepend=0).astype(np.int32)
