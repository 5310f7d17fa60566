"""A translator with a translation memory: what was translated before is said again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard.documents.memory import MemoryMatch, TranslationMemory
from regard.families.translation.translation import Part, Translation, alignments
from regard.families.translation.translator import Translator
from regard.look.word_alignment import Link

AlignedParts = tuple[str, Sequence[Part]]  # the language of an answer, and its sentences with their token ids


class Remembered:
    """Takes translations of whole segments from a memory, from a similarity of `least` on; None: from the model."""

    def __init__(
        self, translator: Translator, memory: TranslationMemory | None, least: float | None = None, name: str = ""
    ):
        self.translator, self.memory, self.least, self.name = translator, memory, least, name

    def translate(self, texts: Sequence[str], *, to: str = "", **options: Any) -> list[Translation]:
        """Translations of texts; see `Translator.translate`."""
        taken = [self._taken(text, to) for text in texts]
        left = [text for text, known in zip(texts, taken, strict=True) if known is None]
        new = iter(self.translator.translate(left, to=to, **options) if left else [])
        return [known or next(new) for known in taken]

    @property
    def first(self) -> Translator:
        """The translator that reads the texts."""
        return self.translator

    @property
    def aligns(self) -> bool:
        """Whether `align` can be asked."""
        return self.translator.alignment is not None

    def parts_of(self, answer: Translation) -> AlignedParts:
        """What `align` needs of an answer."""
        return answer.to, answer.parts

    def align(self, answers: Sequence[AlignedParts]) -> list[list[Link]]:
        """The word links of many answers, computed in batches."""
        return alignments(self.translator, [parts for _, parts in answers], answers[0][0]) if answers else []

    def matches(self, text: str) -> list[MemoryMatch]:
        """Similar segments of the memory, best first."""
        return [] if self.memory is None else self.memory.find(text)

    def _taken(self, text: str, to: str) -> Translation | None:
        if self.memory is None or self.least is None:
            return None
        found = self.memory.used(text, self.least)
        if found is None:
            return None
        return said_again(
            self.translator, text, found.target, self.translator.target_language(to), similarity=found.similarity
        )


def said_again(translator: Translator, text: str, said: str, to: str, *, similarity: float = 1.0) -> Translation:
    """A translation that the model did not make, aligned by its attention like its own."""
    target = translator.tokenizer.target
    (ids,) = target.encode([said])
    return Translation(
        source=text,
        text=said,
        score=0.0,
        finished=True,
        tokens=target.pieces(ids),
        parts=[(text, ids)],
        translator=translator,
        to=to,
        remembered=similarity,
    )
