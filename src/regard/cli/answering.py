"""Line in = line out, for verbs that answer each text on its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import typer

from regard.errors import DataError

Answer = TypeVar("Answer")
LINES_AT_A_TIME = 512


def given_texts(texts: list[str] | None) -> Iterator[str]:
    """The texts of the command line, or the lines of standard input when there are none."""
    from regard.data.lines import read_lines
    from regard.data.pieces import well_formed

    return map(well_formed, texts) if texts else read_lines(sys.stdin.buffer)


def answer_lines(
    lines: Iterator[str], answer: Callable[[list[str]], Sequence[Answer]], show: Callable[[str, Answer | None], str]
) -> None:
    """Print what `show` makes of each line's answer, many computed at a time unless someone is typing them.

    A line that is refused is shown with the answer None and a message on stderr, and the exit code is 1.
    """
    number = refused = 0
    while chunk := list(islice(lines, 1 if sys.stdin.isatty() else LINES_AT_A_TIME)):
        for line, found in zip(chunk, _answers(chunk, answer, number), strict=True):
            refused += found is None
            print(show(line, found), flush=True)
        number += len(chunk)
    if refused:
        raise typer.Exit(1)


def _answers(chunk: list[str], answer: Callable[[list[str]], Sequence[Answer]], before: int) -> Iterator[Answer | None]:
    """The answers of many lines at once, or, when one of them is refused, of each on its own."""
    try:
        yield from answer(chunk)
    except DataError:
        for number, line in enumerate(chunk, start=before + 1):
            try:
                yield answer([line])[0]
            except DataError as error:
                print(f"regard: line {number} is refused: {error}", file=sys.stderr)
                yield None
