"""Word and character error rates: the edits that turn what was heard into what was said, per word or character said."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NORMALISATION = "lower case, no punctuation"  # printed beside every rate
NO_WORD = re.compile(r"[^\w\s']|_|(?<!\w)'|'(?!\w)")  # punctuation, except apostrophes within words


class ErrorRates(NamedTuple):
    """Errors per word (WER) and per character (CER) of the references, the kinds of word errors, and the share of
    texts that are not exactly right. Rates are above 1 if too much was heard."""

    wer: float
    cer: float
    words: int  # of the references
    substitutions: int
    deletions: int  # words of the references that are missing
    insertions: int
    wrong_texts: float


def error_rates(references: Sequence[str], hypotheses: Sequence[str]) -> ErrorRates:
    """The error rates of pairs of texts, of which there is at least one, after normalisation."""
    said, heard = ([plain_words(text) for text in texts] for texts in (references, hypotheses))
    words, wrong = word_edits(said, heard), sum(one != other for one, other in zip(said, heard, strict=True))
    return ErrorRates(
        words.rate, character_edits(said, heard).rate, words.reference, words.substitutions, words.deletions,
        words.insertions, wrong / len(said),
    )  # fmt: skip


class Edits(NamedTuple):
    """The fewest edits between references and hypotheses, and how many items the references have."""

    substitutions: int
    deletions: int  # items of the reference that are missing
    insertions: int
    reference: int

    @property
    def wrong(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Edits per item of the references; above 1 if too much was heard."""
        return self.wrong / self.reference if self.reference else float(self.wrong > 0)

    def plus(self, other: Edits) -> Edits:
        """The edits of both."""
        return Edits(*(one + two for one, two in zip(self, other, strict=True)))


def edits(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> Edits:
    """The fewest edits of two sequences (Levenshtein 1966); of several ways, one with most substitutions."""
    numbers: dict[Hashable, int] = {}
    said, heard = (
        np.array([numbers.setdefault(item, len(numbers)) for item in items], dtype=np.int64)
        for items in (reference, hypothesis)
    )
    table = _distances(said, heard)
    row, column = len(said), len(heard)
    substitutions = deletions = insertions = 0
    while row or column:
        here = table[row, column]
        differs = row and column and said[row - 1] != heard[column - 1]
        if row and column and here == table[row - 1, column - 1] + bool(differs):
            substitutions += bool(differs)
            row, column = row - 1, column - 1
        elif row and here == table[row - 1, column] + 1:
            deletions += 1
            row -= 1
        else:
            insertions += 1
            column -= 1
    return Edits(substitutions, deletions, insertions, len(said))


def word_edits(references: Sequence[str], hypotheses: Sequence[str]) -> Edits:
    """The edits of words, summed over pairs of texts."""
    return _summed([edits(said.split(), heard.split()) for said, heard in zip(references, hypotheses, strict=True)])


def character_edits(references: Sequence[str], hypotheses: Sequence[str]) -> Edits:
    """The edits of characters, the spaces between words included, summed over pairs of texts."""
    pairs = (
        (" ".join(said.split()), " ".join(heard.split())) for said, heard in zip(references, hypotheses, strict=True)
    )
    return _summed([edits(said, heard) for said, heard in pairs])


def plain_words(text: str) -> str:
    """A text in lower case without punctuation, as error rates are usually told."""
    return " ".join(NO_WORD.sub(" ", text.casefold()).split())


def _summed(found: Sequence[Edits]) -> Edits:
    total = Edits(0, 0, 0, 0)
    for each in found:
        total = total.plus(each)
    return total


def _distances(said: NDArray[np.int64], heard: NDArray[np.int64]) -> NDArray[np.int32]:
    """The distance of every beginning of one sequence from every beginning of the other."""
    place = np.arange(len(heard) + 1, dtype=np.int32)
    table = np.empty((len(said) + 1, len(heard) + 1), dtype=np.int32)
    table[0] = place
    for row, item in enumerate(said, start=1):
        best = table[row - 1] + 1  # a deletion
        best[1:] = np.minimum(best[1:], table[row - 1, :-1] + (heard != item))
        table[row] = np.minimum.accumulate(best - place) + place  # insertions, any number of them
    return table
