"""The texts that a command is given, and a report on the words in them that a model does not know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from regard.verbs.files import STDIN

if TYPE_CHECKING:
    from regard.data.tokenizers.unknown_words import UnknownWord

MOST_NAMED = 1000  # unknown words that are remembered, so that some can be named


def given_texts(texts: list[str] | None) -> Iterator[str]:
    """The texts of the command line, or the lines of standard input when there are none, or only `-`."""
    from regard.data.formats.lines import read_lines
    from regard.data.tokenizers.base import well_formed

    return map(well_formed, texts) if texts and texts != [STDIN] else read_lines(sys.stdin.buffer)


class Unknown:
    """Reports unknown words on stderr: for typed texts at once, for the lines of a file in one line at the end."""

    def __init__(self, find: Callable[[str], list[UnknownWord]], *, typed: bool, unit: str = "lines") -> None:
        self.find, self.typed, self.unit = find, typed or sys.stdin.isatty(), unit
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
        message = f"{self.some:,} of {self.count:,} {self.unit} have words that this model does not know: "
        message += named(self.words)
        if self.mostly:
            number, share = self.mostly[0]
            message = f"warning: {message}; mostly unknown: {len(self.mostly):,} (the first is {number:,}: {share:.0%})"
        print(f"regard: {message}", file=sys.stderr)
