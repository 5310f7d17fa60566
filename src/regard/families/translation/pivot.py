"""Translation through a pivot language: two translators, for a pair of languages that no one model has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from regard.data.tokenizers.unknown_words import UnknownWord
from regard.documents.memory import MemoryMatch
from regard.errors import UsageError
from regard.families.translation.memory import AlignedParts
from regard.families.translation.quality import Assessment
from regard.families.translation.routes import pivot_between
from regard.families.translation.translation import Translation, alignments
from regard.families.translation.translator import Translator
from regard.look.word_alignment import Link, compose_links


@dataclass(frozen=True)
class PivotTranslation(Translation):
    """A translation through a pivot language; `hops` are its two translations."""

    hops: tuple[Translation, ...] = ()

    @property
    def truncated(self) -> bool:
        return any(each.truncated for each in self.hops)

    @cached_property
    def repeated(self) -> bool:
        return any(each.repeated for each in self.hops)

    @property
    def source_words(self) -> list[str]:
        return self.hops[0].source_words

    @cached_property
    def unknown(self) -> list[UnknownWord]:
        return self.hops[0].unknown

    @cached_property
    def assessment(self) -> Assessment:
        """The product of both qualities, the doubts of the second hop, and what is wrong with either."""
        first, second = (each.assessment for each in self.hops)
        flags = list(dict.fromkeys([*first.flags, *second.flags]))
        return Assessment(first.quality * second.quality, second.doubts, flags)

    @cached_property
    def attention(self) -> np.ndarray:
        """Word-level weights through the words of the pivot: the product of the weights of both hops."""
        first, second = (each.attention for each in self.hops)
        return second @ first

    @cached_property
    def alignment(self) -> list[Link]:
        """Links of source and target words by the words of the pivot; none if a model has no attention to align by."""
        if any(each.translator is None or each.translator.alignment is None for each in self.hops):
            return []
        return compose_links(*(each.alignment for each in self.hops))


class Pivot:
    """Two translators, of which the second reads what the first says."""

    def __init__(self, first: Translator, second: Translator):
        pivot = pivot_between(first, second)
        if pivot is None:
            reads, says = (", ".join(codes) for codes in (second.source_languages, first.target_languages))
            raise UsageError(f"{second.name} reads {reads}, and {first.name} translates into {says}")
        self.first, self.second, self.language, self.name = first, second, pivot, ""

    def translate(self, texts: Sequence[str], *, to: str = "", n_best: int = 1, **options: Any) -> list[Translation]:
        """Translate texts into the pivot language, and on from there; options are those of `Translator.translate`."""
        ways = self.first.translate(list(texts), to=self.language, **options)
        answers = self.second.translate([way.text for way in ways], to=to, n_best=n_best, **options)
        return [_through(way, answer) for way, answer in zip(ways, answers, strict=True)]

    @property
    def aligns(self) -> bool:
        """Whether `align` can be asked."""
        return self.first.alignment is not None and self.second.alignment is not None

    def parts_of(self, answer: Translation) -> list[AlignedParts]:
        """What `align` needs of an answer."""
        assert isinstance(answer, PivotTranslation)
        return [(hop.to, hop.parts) for hop in answer.hops]

    def align(self, answers: Sequence[Sequence[AlignedParts]]) -> list[list[Link]]:
        """The word links of many answers through the words of the pivot, computed in batches."""
        if not answers:
            return []
        first, second = (
            alignments(translator, [hops[number][1] for hops in answers], answers[0][number][0])
            for number, translator in enumerate((self.first, self.second))
        )
        return list(map(compose_links, first, second))

    def matches(self, text: str) -> list[MemoryMatch]:
        """No matches: a translation memory is of one model's languages."""
        return []


def _through(way: Translation, answer: Translation) -> Translation:
    values = {name: getattr(answer, name) for name in ("text", "score", "finished", "tokens", "to", "translator")}
    others = [_through(way, other) for other in answer.alternatives]
    return PivotTranslation(source=way.source, parts=answer.parts, alternatives=others, hops=(way, answer), **values)
