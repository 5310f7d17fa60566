"""Fill a column of TSV and CSV tables; delimiter, quotes, line ends and all other cells are unchanged."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice

from regard.data.formats.pairs import Columns, find_columns, format_of
from regard.documents.document_job import DocumentJob, batches
from regard.documents.markup import translate_texts
from regard.errors import DataError

DELIMITERS = ",;\t|"
SEP_LINE = re.compile(r"sep=(.)\s*$", re.IGNORECASE)  # a line that Excel may write before the header
SAMPLE_LINES = 20  # lines from which the delimiter is guessed


@dataclass(slots=True)
class Row:
    """A row: the values of its cells, their spelling, and the line end."""

    cells: list[str]
    raw: list[str]
    end: str

    def set(self, column: int, text: str, like: int | None = None) -> None:
        """Set or add a cell; it is quoted if it must be or if the cell `like` is. Without `like` never (TSV)."""
        missing = column + 1 - len(self.cells)
        self.cells += [""] * missing
        self.raw += [""] * missing
        self.cells[column] = text
        quoted = like is not None and (re.search(r'[",;\t|\r\n]|^\s|\s$', text) or self.raw[like].startswith('"'))
        self.raw[column] = f'"{text.replace(chr(34), chr(34) * 2)}"' if quoted else text


def translate_table(job: DocumentJob) -> None:
    lines = job.lines()
    if format_of(job.path) == ".tsv":
        delimiter, rows = "\t", _tab_rows(lines)
    else:
        delimiter, lines = _find_delimiter(lines, job)
        rows = _csv_rows(lines, delimiter, job)
    quotes = format_of(job.path) != ".tsv"
    head = list(islice(rows, 1))
    columns = _columns_to_fill(head[0], job, quotes) if head else Columns()
    if columns.named:
        job.write(delimiter.join(head[0].raw) + head[0].end)
    for batch in batches(rows if columns.named else chain(head, rows)):
        todo = [row for row in batch if _needs_translation(row.cells, columns, job)]
        texts = translate_texts([row.cells[columns.source] for row in todo], job.translate)
        for row, text in zip(todo, texts, strict=True):
            row.set(columns.target, text, columns.source if quotes else None)
        for row in batch:
            job.write(delimiter.join(row.raw) + row.end)
        job.report.translated += len(todo)


def _needs_translation(cells: Sequence[str], columns: Columns, job: DocumentJob) -> bool:
    if len(cells) <= columns.source or not cells[columns.source].strip():
        job.report.skipped["without a source text"] += bool(cells)
        return False
    if job.overwrite or len(cells) <= columns.target or not cells[columns.target].strip():
        return True
    job.report.kept["already translated"] += 1
    return False


def _columns_to_fill(head: Row, job: DocumentJob, quotes: bool) -> Columns:
    """The columns of a table; a target column is added to a header that names only the source."""
    for added in ("", job.target, "target"):
        columns = find_columns([*head.cells, added] if added else head.cells, job.source, job.target)
        if columns.named:
            if added:
                head.set(len(head.cells), added, columns.source if quotes else None)
            return columns
    return Columns()


def _tab_rows(lines: Iterator[str]) -> Iterator[Row]:
    for line in lines:
        text = line.rstrip("\r\n")
        cells = text.split("\t") if text else []
        yield Row(cells, list(cells), line[len(text) :])


# CSV


def _csv_rows(lines: Iterator[str], delimiter: str, job: DocumentJob) -> Iterator[Row]:
    """The rows that the csv module reads, each with its original spelling."""
    lines_read: list[str] = []

    def recorded() -> Iterator[str]:
        for line in lines:
            lines_read.append(line)
            yield line

    reader = csv.reader(recorded(), delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            record = "".join(lines_read)
            lines_read.clear()
            text = record.rstrip("\r\n") if not record.endswith('"') else record
            yield Row(cells, _raw_cells(text, delimiter, cells), record[len(text) :])
    except csv.Error as error:
        where = f"{job.path}, line {reader.line_num}"
        raise DataError(f"{where}: not well-formed CSV ({error}); check the quotes") from None


def _raw_cells(text: str, delimiter: str, cells: Sequence[str]) -> list[str]:
    """The spelling of each cell."""
    stop = re.escape(delimiter)
    cell = re.compile(rf'("(?:[^"]|"")*"|[^{stop}]*)(?:{stop}|\Z)')
    raw: list[str] = []
    end = 0
    while len(raw) < len(cells) and (match := cell.match(text, end)):
        raw.append(match[1])
        end = match.end()
    assert len(raw) == len(cells) and end == len(text), "must split like the csv module"
    return raw


def _find_delimiter(lines: Iterator[str], job: DocumentJob) -> tuple[str, Iterator[str]]:
    """The delimiter of a CSV file: the announced one, or one whose header names languages, or one with even rows."""
    first = list(islice(lines, SAMPLE_LINES))
    announced = SEP_LINE.match(first[0]) if first else None
    if announced:
        job.write(first[0])
        return announced[1], chain(first[1:], lines)
    best = max(DELIMITERS, key=lambda delimiter: _likelihood(first, delimiter, job))  # the first of equals
    return best, chain(first, lines)


def _likelihood(lines: Sequence[str], delimiter: str, job: DocumentJob) -> tuple[bool, bool]:
    """Whether the header names the languages with this delimiter, and whether all rows have the same length."""
    rows: list[list[str]] = []
    with suppress(csv.Error):  # the last row may be incomplete, and another delimiter's quotes may not parse
        rows.extend(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)))
    widths = set(map(len, rows))
    wide = len(widths) == 1 and widths != {1}
    added: list[list[str]] = [[], [job.target], ["target"]]
    return bool(rows) and any(find_columns(rows[0] + more, job.source, job.target).named for more in added), wide
