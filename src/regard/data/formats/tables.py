"""Tables of texts, TSV and CSV: their delimiter, their rows, and the columns that hold two languages."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from regard.data.formats.languages import find_language, language_name
from regard.data.formats.lines import Errors, on_damage, read_lines
from regard.errors import DataError

ROLES = {"source": ("source", "src"), "target": ("target", "tgt", "trg")}  # what columns and keys are called
LINKS = ("links", "alignment")
DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r"sep=(.)\s*$", re.IGNORECASE)  # a line that Excel may write before the header
SAMPLE_LINES = 20  # lines from which the delimiter is guessed


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a table keeps the two languages and the word links."""

    source: int = 0
    target: int = 1
    links: int = 2
    named: bool = False


def format_of(path: Path) -> str:
    """The suffix of a file's format, without `.gz`."""
    return Path(path.stem if path.suffix == ".gz" else path.name).suffix.lower()


def find_columns(first_row: Sequence[str], source: str, target: str) -> Columns:
    """The columns named in a header by language (`en`, `en-US`, `English`) or by role (`source`, `src`); without a
    header the first three."""
    names = [cell.strip().lower() for cell in first_row]
    by_language = find_named(names, source), find_named(names, target)
    by_role = [next((name for name in ROLES[role] if name in names), None) for role in ("source", "target")]
    for here, there in (by_language, by_role):
        if here is not None and there is not None and here != there:
            links = next((names.index(name) for name in LINKS if name in names), -1)
            return Columns(names.index(here), names.index(there), links, named=True)
    return Columns()


def find_named(names: Sequence[str], language: str) -> str | None:
    """The one of some lower-case names that is a language's code, or its English name."""
    english = language_name(language).lower()
    return find_language(names, language) or (english if english in names else None)


def read_rows(path: Path, source: str, target: str, errors: Errors) -> Iterator[tuple[int, list[str]]]:
    """The rows of a TSV or CSV file of two languages, with their line numbers; empty lines are skipped."""
    lines = read_lines(path, on_damage(errors))
    if format_of(path) == ".tsv":
        yield from ((number, line.split("\t")) for number, line in enumerate(lines, 1) if line)
        return
    first = list(islice(lines, SAMPLE_LINES))
    delimiter, begin = find_delimiter(first, source, target)
    rows = csv.reader((line + "\n" for line in chain(first[begin:], lines)), delimiter=delimiter, strict=True)
    try:
        for row in rows:
            if row:
                yield rows.line_num + begin, row
    except csv.Error as error:
        where = f"{path}, line {rows.line_num + begin}"
        raise DataError(f"{where}: not well-formed CSV ({error}); check the quotes") from None


def find_delimiter(first: Sequence[str], source: str, target: str) -> tuple[str, int]:
    """The delimiter of a CSV file, and the line at which its table begins, from its first lines.

    It is the announced one, or one whose header names the languages, or one with which all rows are equally long."""
    announced = SEP_LINE.match(first[0]) if first else None
    if announced:
        return announced[1], 1
    return max(DELIMITERS, key=lambda each: _likelihood(first, each, source, target)), 0  # the first of equals


def _likelihood(lines: Sequence[str], delimiter: str, source: str, target: str) -> tuple[bool, bool]:
    """Whether the header names the languages with this delimiter, and whether all rows have the same length."""
    rows: list[list[str]] = []
    with suppress(csv.Error):  # the last row may be incomplete, and another delimiter's quotes may not parse
        rows.extend(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)))
    widths = set(map(len, rows))
    wide = len(widths) == 1 and widths != {1}
    added: list[list[str]] = [[], [target], ["target"]]  # a table that is still to be translated may lack its target
    return bool(rows) and any(find_columns(rows[0] + more, source, target).named for more in added), wide
