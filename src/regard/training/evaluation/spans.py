"""Scores of phrases in texts: of tagged words as CoNLL counts them, and of answers as SQuAD does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from regard.data.formats.tagged_words import entities


def tag_scores(found: Sequence[list[str]], true: Sequence[list[str]]) -> dict[str, float]:
    """The share of right tags, and F1 of whole phrases: kind, beginning and end must be right."""
    same = sum(one == other for pair in zip(found, true, strict=True) for one, other in zip(*pair, strict=True))
    guessed, right, both = 0, 0, 0
    for one, other in zip(found, true, strict=True):
        ours, theirs = entities(one), entities(other)
        guessed, right, both = guessed + len(ours), right + len(theirs), both + len(ours & theirs)
    words = sum(map(len, true))
    return {"accuracy": same / max(1, words), "f1": 2 * both / max(1, guessed + right)}


def answer_scores(found: Sequence[str], right: Sequence[list[str]]) -> dict[str, float]:
    """The share of exactly right answers, and the mean F1 of their words, each against the best of the right answers.

    An empty answer says that the text does not have one; it is right where no answer is. Case, punctuation and English
    articles do not count.
    """
    pairs = [(answer, acceptable or [""]) for answer, acceptable in zip(found, right, strict=True)]
    exact = [max(_words(answer) == _words(each) for each in acceptable) for answer, acceptable in pairs]
    shared = [max(_overlap(answer, each) for each in acceptable) for answer, acceptable in pairs]
    return {"exact": sum(exact) / max(1, len(exact)), "f1": sum(shared) / max(1, len(shared))}


def _overlap(answer: str, right: str) -> float:
    ours, theirs = _words(answer), _words(right)
    if not ours or not theirs:
        return float(ours == theirs)
    both = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * both / (len(ours) + len(theirs))


def _words(text: str) -> list[str]:
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
