"""The files and texts that a command is given, those that it leaves out, names for those that it writes, and a report
on the words that a model does not know."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import DataError, UsageError

if TYPE_CHECKING:
    from regard.data.tokenizers.unknown_words import UnknownWord


STDIN = "-"
NAMED = 5  # skipped files that are named in the last line

Images = Annotated[
    list[str] | None,
    typer.Argument(help="Files or folders of images, - for one on stdin; without any, lines of stdin."),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out inputs that cannot be read; they are counted and named.")
]


class GivenFiles:
    """Files by name, the files in folders, and the content of standard input where the name is `-`.

    Without any, the lines of standard input are the names. `suffixes` say which files of a folder are meant.
    """

    def __init__(self, given: list[str] | None, suffixes: Sequence[str]) -> None:
        self.given, self.suffixes = given or [], tuple(suffixes)
        if self.given.count(STDIN) > 1:
            raise UsageError("standard input is read once; give - once")

    def names(self) -> Iterator[str]:
        """The names in order; the files of a folder are sorted."""
        if not self.given:
            from regard.data.formats.lines import read_lines

            yield from read_lines(sys.stdin.buffer)
        for each in self.given:
            yield from files_in(Path(each), self.suffixes) if Path(each).is_dir() else [each]

    def source(self, name: str) -> str | bytes:
        """What a pipeline reads: the name of a file, or the content of standard input."""
        return self._content if self.reads_content and name == STDIN else name

    def sources(self, names: Sequence[str]) -> list[str | bytes]:
        return [self.source(name) for name in names]

    @property
    def reads_content(self) -> bool:
        """Whether standard input is one of the files."""
        return STDIN in self.given

    @cached_property
    def _content(self) -> bytes:
        return sys.stdin.buffer.read()


def files_in(folder: Path, suffixes: Sequence[str]) -> list[str]:
    """The files of a folder and of those in it that have one of these suffixes, compressed (.gz) or not."""
    found = sorted(
        str(path)
        for path in folder.rglob("*")
        if path.name.lower().removesuffix(".gz").endswith(tuple(suffixes)) and path.is_file()
    )
    if not found:
        raise DataError(f"{folder} is a folder without a file to read; expected {', '.join(suffixes)}")
    return found


def title(name: str) -> str:
    """How a file is called in what is written about it."""
    return "stdin" if name == STDIN else Path(name).name


def free_name(folder: Path, name: str, suffix: str, taken: set[Path]) -> Path:
    """The place in a folder for what is written about a file, which is taken from then on. Files of one name in several
    folders get numbers."""
    stem, number = Path(title(name)).stem, 1
    path = folder / f"{stem}{suffix}"
    while path in taken:
        number += 1
        path = folder / f"{stem}-{number}{suffix}"
    taken.add(path)
    return path


def tell_skipped(skipped: Sequence[str], count: int, unit: str = "files") -> None:
    """Count and name the inputs that were left out; if none is left, the command has failed."""
    if not skipped:
        return
    more = f" and {len(skipped) - NAMED:,} more" if len(skipped) > NAMED else ""
    print(f"regard: skipped {len(skipped):,} of {count:,} {unit}: {', '.join(skipped[:NAMED])}{more}", file=sys.stderr)
    if len(skipped) == count:
        raise typer.Exit(1)


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
