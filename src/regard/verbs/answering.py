"""One output line per input line, for commands that process each text separately."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

import typer

from regard.errors import DataError
from regard.verbs.files import STDIN, tell_skipped

if TYPE_CHECKING:
    from regard.data.tokenizers.unknown_words import UnknownWord
    from regard.families.translation.translator import Translator

Answer = TypeVar("Answer")
LINES_AT_A_TIME = 512
MOST_NAMED = 1000  # unknown words that are remembered, so that some can be named


class Unknown:
    """Reports unknown words on stderr: for typed texts at once, for the lines of a file in one line at the end."""

    def __init__(
        self, find: Callable[[str], list[UnknownWord]], *, typed: bool, unit: str = "lines", about: str = ""
    ) -> None:
        """`about` says what the model knows. It is printed once, when something is unknown."""
        self.find, self.typed, self.unit, self.about = find, typed or sys.stdin.isatty(), unit, about
        self.count = self.some = 0
        self.mostly: list[tuple[int, float]] = []
        self.words: list[UnknownWord] = []

    def note(self, text: str, words: list[UnknownWord] | None = None) -> None:
        """Count the next text; `words` are its unknown words, if they have been looked up."""
        self.count += 1
        words = self.find(text) if words is None else words
        if not words:
            return
        if self.typed:
            from regard.look.terminal import print_unknown

            sys.stdout.flush()
            print_unknown(text, words)
            self._tell_about()
            return
        from regard.data.tokenizers.unknown_words import is_mostly_unknown, unknown_share

        self.some += 1
        self.words += words[: MOST_NAMED - len(self.words)]
        if is_mostly_unknown(text, words):
            self.mostly.append((self.count, unknown_share(text, words)))

    def tell(self) -> None:
        """Print a summary of the unknown words in the lines of a file."""
        from regard.data.tokenizers.unknown_words import named

        if not self.some:
            return
        told = f"{self.some:,} of {self.count:,} {self.unit} have words that this model does not know: "
        told += named(self.words)
        if self.mostly:
            number, share = self.mostly[0]
            told = f"warning: {told}; mostly unknown: {len(self.mostly):,} (the first is {number:,}: {share:.0%})"
        print(f"regard: {told}", file=sys.stderr)
        self._tell_about()

    def _tell_about(self) -> None:
        if self.about:
            print(f"regard: {self.about}", file=sys.stderr)
            self.about = ""


def unknown_to(translator: Translator, models: list[str], *, typed: bool, unit: str = "lines") -> Unknown:
    """A report on the words that a translator, named on the command line as `models`, does not know."""
    from regard.families.translation.demo import about

    return Unknown(translator.unknown_words, typed=typed, unit=unit, about=about(models))


def refuse_images(texts: Iterable[str]) -> None:
    """Raise an error for an image file where a text is expected."""
    from regard.data.arguments import refuse_images as refuse

    refuse(texts)


def given_texts(texts: list[str] | None) -> Iterator[str]:
    """The texts of the command line, or the lines of standard input when there are none, or only `-`."""
    from regard.data.formats.lines import read_lines
    from regard.data.tokenizers.base import well_formed

    return map(well_formed, texts) if texts and texts != [STDIN] else read_lines(sys.stdin.buffer)


def answer_lines(
    lines: Iterator[str],
    answer: Callable[[list[str]], Sequence[Answer]],
    show: Callable[[str, Answer | None], str],
    unknown: Unknown | None = None,
    skip_bad: bool = False,
) -> None:
    """Print what `show` makes of each line's answer; lines are computed in batches unless they are typed.

    A refused line has the answer None and a message on stderr, and the exit code is 1; with `skip_bad` it is left out,
    counted and named. `unknown` collects the unknown words of the lines.
    """
    number, refused = 0, list[str]()
    while chunk := list(islice(lines, 1 if sys.stdin.isatty() else LINES_AT_A_TIME)):
        for line, found in zip(chunk, _answers(chunk, answer, number), strict=True):
            if found is None:
                refused.append(line)
            if found is not None or not skip_bad:
                print(show(line, found), flush=True)
            if unknown is not None:
                unknown.note(line)
        number += len(chunk)
    if unknown is not None:
        unknown.tell()
    if skip_bad:
        tell_skipped(refused, number)
    elif refused:
        raise typer.Exit(1)


def _answers(chunk: list[str], answer: Callable[[list[str]], Sequence[Answer]], before: int) -> Iterator[Answer | None]:
    """The answers of many lines in one call; if a line is an error, each line is processed separately."""
    try:
        yield from answer(chunk)
    except DataError:
        for number, line in enumerate(chunk, start=before + 1):
            try:
                yield answer([line])[0]
            except DataError as error:
                print(f"regard: line {number} is refused: {error}", file=sys.stderr)
                yield None
