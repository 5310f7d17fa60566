"""The translation of a text of several sentences and lines, whole or as far as it is known."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from regard.data.tokenizers.unknown_words import UnknownWord
from regard.documents.sentences import SplitText
from regard.families.translation.quality import Assessment
from regard.families.translation.translation import Translation, joined


@dataclass(frozen=True)
class TranslatedText:
    """The translation of a text of several sentences and lines; `way` is the one into a pivot language before it."""

    split: SplitText
    sentences: list[Translation]
    way: TranslatedText | None = None

    @property
    def text(self) -> str:
        return self.split.join([each.text for each in self.sentences])

    @property
    def truncated(self) -> bool:
        return any(each.truncated for each in self.sentences) or (self.way is not None and self.way.truncated)

    @property
    def unknown(self) -> list[UnknownWord]:
        """The words of the text that the model does not know."""
        if self.way is not None:
            return self.way.unknown
        found, offset = list[UnknownWord](), 0
        for gap, each in zip(self.split.gaps, self.sentences, strict=False):
            offset += len(gap)
            found += [UnknownWord(word, offset + start, offset + end) for word, start, end in each.unknown]
            offset += len(each.source)
        return found

    @property
    def assessment(self) -> Assessment:
        """The estimated quality of the whole text; through a pivot language, the product of both qualities."""
        if not self.sentences:
            return Assessment(1.0, [], [])
        own = joined(self.sentences).assessment
        if self.way is None:
            return own
        before = self.way.assessment
        return replace(
            own, quality=own.quality * before.quality, flags=list(dict.fromkeys([*before.flags, *own.flags]))
        )

    def alternatives(self, count: int) -> list[str]:
        """Up to `count` other translations, all different, made of each sentence's next best ones."""
        most = max((len(each.alternatives) for each in self.sentences), default=0)
        others = [self.ranked(rank) for rank in range(1, most + 1)]
        return [each for each in dict.fromkeys(others) if each != self.text][:count]

    def ranked(self, rank: int) -> str:
        """The text made of each sentence's translation of this rank; rank 0 is the best."""
        return self.split.join([ranked(each, rank).text for each in self.sentences])


class PartialText(NamedTuple):
    """A translation so far; the last one of a stream carries the complete result in `final`."""

    text: str
    truncated: bool = False
    final: TranslatedText | None = None


def text_so_far(split: SplitText, translations: list[str]) -> str:
    """The text up to the last translated sentence."""
    count = len(translations)
    return SplitText(split.sentences[:count], [*split.gaps[:count], ""]).join(translations)


def ranked(answer: Translation, rank: int) -> Translation:
    """The translation of this rank; rank 0 is the best. If there are fewer, the last one."""
    return [answer, *answer.alternatives][: rank + 1][-1]
