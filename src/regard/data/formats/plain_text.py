"""Stream plain text as lines that mark the beginning of documents, so that texts may be larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.formats.lines import read_lines, refuse

# Separated by blank lines; one per line; one per file; the instructions of a file of paths, which data/paths reads.
Documents = Literal["blank", "line", "file", "instructions"]


class Line(NamedTuple):
    """A line with its line end, and whether it begins a document."""

    text: str
    first: bool


def read_text(path: str | Path, documents: Documents) -> Iterator[Line]:
    """The lines of a file (also .gz). Blank lines are dropped unless every file is one document."""
    first = True
    for text in read_lines(path, refuse, ends=True):
        if documents == "file":
            yield Line(text.removeprefix("\ufeff") if first else text, first)
            first = False
        elif text.strip("\ufeff \t\r\n"):
            yield Line(text.removeprefix("\ufeff") if first else text, first or documents == "line")
            first = False
        else:
            first = True


def read_texts(paths: Sequence[str], documents: Documents) -> Iterator[Line]:
    """The lines of several files, one after another."""
    for path in paths:
        yield from read_text(path, documents)


def split_text(
    paths: Sequence[str], documents: Documents, share: float
) -> Iterator[tuple[Literal["train", "valid"], Line]]:
    """Every line with its part: the last `share` of the characters is for validation.

    Documents are not split, except whole files, which are split at the exact character.
    """
    total = sum(len(line.text) for line in read_texts(paths, documents))
    limit, seen, training = int(total * (1 - share)), 0, True
    for line in read_texts(paths, documents):
        left = limit - seen
        seen += len(line.text)
        if documents == "file":
            if left > 0:
                yield "train", Line(line.text[:left], line.first)
            if left < len(line.text):
                yield "valid", Line(line.text[max(left, 0) :], line.first or left >= 0)
        else:
            training = training and not (line.first and left <= 0)
            yield "train" if training else "valid", line
