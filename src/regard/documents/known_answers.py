"""Rewrite a document with translations that are known, and count the texts that lack one.

Whoever translates these and tries again needs nobody to wait in the middle of a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from regard.documents.markup import Translated


class KnownAnswers:
    """A stand-in for a translator: answers what is known, and counts the texts that are not."""

    def __init__(self, known: Mapping[str, Translated]) -> None:
        self.known, self.missing = known, Counter[str]()

    def __call__(self, texts: list[str]) -> list[str | Translated]:
        self.missing.update(text for text in texts if text not in self.known)
        return [self.known.get(text, text) for text in texts]
