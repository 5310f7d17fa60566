"""Rewrite a document with translations that are known, and count the texts that lack one.

Whoever translates these and tries again needs nobody to wait in the middle of a document.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from regard.documents.markup import LaterLinks, Links, Translated


class KnownAnswers:
    """A stand-in for a translator: answers what is known, counts the texts that are not, and says which of these have
    markup, which is put back by the links between words."""

    def __init__(self, known: Mapping[str, Translated]) -> None:
        self.known, self.missing, self.marked = known, Counter[str](), set[str]()

    def __call__(self, texts: list[str]) -> list[Translated]:
        self.missing.update(text for text in texts if text not in self.known)
        return [self.known.get(text) or Translated(text, LaterLinks(text, self._mark)) for text in texts]

    def _mark(self, texts: list[str]) -> list[Links]:
        self.marked.update(texts)
        return [()] * len(texts)
