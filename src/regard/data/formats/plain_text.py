"""Plain text as a stream of lines that know where a document begins, so that a text larger than memory is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from regard.data.formats.lines import read_lines, refuse

Documents = Literal["blank", "line", "file"]  # blank lines separate them; every line is one; every file is one


class Line(NamedTuple):
    """A line with its end, and whether a document begins with it."""

    text: str
    first: bool


def read_text(path: str | Path, documents: Documents) -> Iterator[Line]:
    """The lines of a file (also .gz). Where every file is one document they are all kept, else blank ones are not."""
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
    """Every line with the part it belongs to: the last `share` of the characters are for validation.

    A document stays whole, unless it is a whole file, which is cut at the exact character.
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
