"""How many sentences that newcomers type come out right: `python bench/newcomers.py MODEL [FILE ...] [--show]`.

Each line of a list holds an English sentence and, after tabs, its acceptable Spanish and Portuguese translations as a
pattern: `[a/b]` is a choice, `(a)` or `(a/b)` may be left out. No list is used in training.
"""

from __future__ import annotations

import argparse
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from regard.families.translation.translator import Translator

LISTS = Path(__file__).parent / "newcomers"
LANGUAGES = ("es", "pt")


def accepted(pattern: str) -> set[str]:
    """All texts that a pattern matches."""
    return {plain(text) for text in _expand(pattern)}


def _expand(pattern: str) -> Iterator[str]:
    """Every text of a pattern, expanded from its first bracket."""
    found = re.search(r"[(\[]", pattern)
    if found is None:
        yield pattern
        return
    options, end = _options(pattern, found.start())
    if found.group() == "(":
        options.append("")
    for option in options:
        for inside in _expand(option):
            for rest in _expand(pattern[end:]):
                yield pattern[: found.start()] + inside + rest


def _options(pattern: str, start: int) -> tuple[list[str], int]:
    """The choices of the bracket that opens at `start`, and the position after it."""
    depth, options = 0, [""]
    for place, character in enumerate(pattern[start:], start):
        if character in "([":
            depth += 1
        if character in ")]":
            depth -= 1
        if depth == 0:
            return options, place + 1
        if character == "/" and depth == 1:
            options.append("")
        elif place > start:
            options[-1] += character
    raise ValueError(f"{pattern!r}: a bracket is never closed")


def plain(text: str) -> str:
    """The words of a text, without capitals and punctuation."""
    kept = re.sub(r"[^\w\s:'-]", " ", unicodedata.normalize("NFC", text).lower())
    return " ".join(kept.split())


def count(translator: Translator, path: Path, *, show: bool) -> dict[str, int]:
    """The number of correctly translated lines of a list, by language."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]
    right = dict.fromkeys(LANGUAGES, 0)
    for column, language in enumerate(LANGUAGES, start=1):
        answers = translator.translate([row[0] for row in rows], to=language)
        for row, answer in zip(rows, answers, strict=True):
            good = plain(answer.text) in accepted(row[column])
            right[language] += good
            if show:
                print(f"{'right' if good else 'WRONG'}  {language}  {row[0]}  →  {answer.text}")
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("files", type=Path, nargs="*", default=sorted(LISTS.glob("*.tsv")))
    parser.add_argument("--show", action="store_true", help="print every answer")
    options = parser.parse_args()
    translator = Translator.load(options.model)
    for path in options.files:
        right = count(translator, path, show=options.show)
        total = len(path.read_text(encoding="utf-8").splitlines())
        print(f"{path.name}: {', '.join(f'{language} {right[language]} of {total}' for language in LANGUAGES)}")


if __name__ == "__main__":
    main()
