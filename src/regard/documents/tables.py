"""Fill a column of TSV and CSV tables; delimiter, quotes, line ends and all other cells are unchanged."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from regard.data.formats.tables import SAMPLE_LINES, Columns, find_columns, find_delimiter, format_of
from regard.documents.document_job import DocumentJob, batches
from regard.documents.markup import translate_texts
from regard.errors import DataError


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
    quotes = format_of(job.path) != ".tsv"
    if not quotes:
        delimiter, rows = "\t", _tab_rows(lines)
    else:
        first = list(islice(lines, SAMPLE_LINES))
        delimiter, begin = find_delimiter(first, job.source, job.target)
        for announcement in first[:begin]:
            job.write(announcement)
        rows = _csv_rows(chain(first[begin:], lines), delimiter, job)
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
    if not columns.named and not job.report.translated and job.report.kept:
        warnings.warn(
            f"{job.path}: nothing was translated: no column is named {job.source!r}, so the second was taken for the "
            f"translation of the first; name the column to translate {job.source!r} in the header, or use --overwrite",
            stacklevel=2,
        )


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
