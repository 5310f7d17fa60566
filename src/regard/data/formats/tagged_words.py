"""Tagged words in columns, as in CoNLL's files: a word and its tag on every line, an empty line between two texts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from regard.data.formats.lines import read_lines, refuse
from regard.errors import DataError

BEGINS_DOCUMENT = "-DOCSTART-"  # CoNLL 2003 writes it where a document begins; it is no word


class TaggedText(NamedTuple):
    """The words of a text and the tag of each."""

    words: list[str]
    tags: list[str]

    @property
    def text(self) -> str:
        return " ".join(self.words)


def read_tagged(path: str | Path, column: int | None = None) -> Iterator[TaggedText]:
    """The texts of a file (also .gz). Columns are separated by tabs or spaces; the first has the words, and `column`,
    or else the last, the tags."""
    words: list[str] = []
    tags: list[str] = []
    for number, line in enumerate(read_lines(path, refuse), 1):
        cells = line.split("\t") if "\t" in line else line.split()
        if not line.strip() or cells[0] == BEGINS_DOCUMENT:
            if words:
                yield TaggedText(words, tags)
            words, tags = [], []
            continue
        place = len(cells) - 1 if column is None else column
        if not 0 < place < len(cells) or len(cells[0].split()) != 1 or not cells[place].strip():
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns; expected one word in the first and its tag in "
                f"{'the last' if column is None else f'column {column}, from 0'}, separated by a tab or spaces"
            )
        words.append(cells[0].strip())
        tags.append(cells[place].strip())
    if words:
        yield TaggedText(words, tags)


def entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """The phrases that tags B-KIND, I-KIND, O mark: kind, first word, word after the last.

    A phrase also begins at an I-KIND after another kind or after O, as CoNLL's own scorer reads it. Tags without such a
    prefix are phrases of one word, but for O.
    """
    found, kind, begin = set[tuple[str, int, int]](), "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, name = tag.partition("-")
        marked = prefix in ("B", "I") and bool(name)
        goes_on = prefix == "I" and marked and name == kind
        if kind and not goes_on:
            found.add((kind, begin, place))
            kind = ""
        if marked and not goes_on:
            kind, begin = name, place
        elif not marked and tag != "O":
            found.add((tag, place, place + 1))
    return found
