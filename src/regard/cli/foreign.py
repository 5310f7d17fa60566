"""Warn about texts that are not in the source language of a translator."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

LOOKED_AT = 1000  # texts checked for their language; later ones are not checked


class Foreign:
    """Finds texts that are clearly in another language; reports each typed text, else the number of texts."""

    def __init__(self, source: str, target: str, *, typed: bool, unit: str = "lines") -> None:
        self.source, self.target, self.typed, self.unit = source, target, typed, unit
        self.seen, self.foreign, self.first = 0, 0, ""

    def watch(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts unchanged; report after the last one what was found."""
        for text in texts:
            self.note(text)
            yield text
        self.tell()

    def note(self, text: str) -> None:
        from regard.data.formats.languages import language_name, same_language
        from regard.documents.language_id import choose_language

        if not self.source or self.seen >= LOOKED_AT:
            return
        self.seen += 1
        found = choose_language(text, [self.source]).language
        if same_language(found, self.source):
            return
        self.foreign += 1
        already = " already, the language it is translated into" if same_language(found, self.target) else ""
        what = f"{language_name(found)} ({found}){already}"
        if self.typed:
            self._say(f"the text {text[:40]!r} seems to be {what}; this model reads {language_name(self.source)}")
        self.first = self.first or f"number {self.seen} is {what}"

    def tell(self) -> None:
        from regard.data.formats.languages import language_name

        if self.foreign and not self.typed:
            self._say(
                f"{self.foreign} of {self.seen} {self.unit} looked at seem to be in another language than "
                f"{language_name(self.source)}, which this model reads; {self.first}"
            )

    @staticmethod
    def _say(words: str) -> None:
        print(f"regard: warning: {words}", file=sys.stderr)
