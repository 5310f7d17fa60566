"""The result of translating a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from regard.data.text.glossary import NO_TERMS, Glossary
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.inference.insight.forced_pass import AlignmentSettings, Pass
from regard.inference.insight.quality import Assessment, Flag
from regard.inference.insight.word_alignment import Link
from regard.inference.pipelines.terms import TermUse, term_uses

if TYPE_CHECKING:
    from regard.inference.pipelines.translator import Translator


@dataclass(frozen=True)
class Translation:
    """One translated text. Its attention is computed when it is first asked for, by one forced pass."""

    source: str
    text: str
    score: float
    finished: bool  # False if the length limit was reached before the end of a sentence
    tokens: list[str]
    to: str = ""
    prefix: str = ""  # the beginning that was given
    glossary: Glossary = field(default=NO_TERMS, repr=False)  # the terms that were given
    remembered: float | None = None  # from a translation memory: the similarity of the segment found there
    parts: Sequence[tuple[str, list[int]]] = field(default=(), repr=False)  # sentences, and the token ids of each
    alternatives: list[Translation] = field(default_factory=list)
    translator: Translator | None = field(default=None, repr=False, compare=False)

    @property
    def truncated(self) -> bool:
        """Whether something may be missing because a limit was reached."""
        return not self.finished

    @property
    def source_words(self) -> list[str]:
        return [word for source, _ in self.parts for word in source.split()]

    @property
    def target_words(self) -> list[str]:
        return self.text.split()

    @cached_property
    def unknown(self) -> list[UnknownWord]:
        """The words of the source that the model does not know, and those that were copied into the translation."""
        return self.translator.unknown_in(self) if self.translator is not None else []

    @cached_property
    def terms(self) -> list[TermUse]:
        """The terms of the glossary in the source, and where the translation has them."""
        return term_uses(self.source, self.text, self.glossary)

    @cached_property
    def assessment(self) -> Assessment:
        """How good the translation probably is, computed by one forced pass; see `QualityEstimator.assess`."""
        assert self.translator is not None
        return self.translator.quality.assess(self)

    @property
    def quality(self) -> float:
        """The estimated quality, from 0 to 1."""
        return self.assessment.quality

    @property
    def doubts(self) -> list[float]:
        """The doubt of each target word, from 0 to 1."""
        return self.assessment.doubts

    @property
    def flags(self) -> list[Flag]:
        """What is wrong with it: cut, hallucinated, repeated."""
        return self.assessment.flags

    @cached_property
    def attention(self) -> np.ndarray:
        """Word-level weights of the aligning layer: [target words, source words], rows sum to 1."""
        return _block_diagonal([each.words(self._settings()) for each in self._passes()])

    @cached_property
    def alignment(self) -> list[Link]:
        """(source word, target word) links, counted from 0."""
        links, sources, targets = [], 0, 0
        for (source, _), each in zip(self.parts, self._passes(), strict=True):
            links += [(s + sources, t + targets) for s, t in each.links(self._settings())]
            sources += len(source.split())
            targets += each.target_words
        return links

    def _passes(self) -> list[Pass]:
        assert self.translator is not None
        sources, ids = [source for source, _ in self.parts], [ids for _, ids in self.parts]
        return self.translator.passes(sources, ids, to=self.to, layers=self._settings().layer) if sources else []

    def _settings(self) -> AlignmentSettings:
        assert self.translator is not None
        return self.translator.aligning()


class Partial(NamedTuple):
    """A translation in progress; the last one has the whole translation, and says whether a limit cut it."""

    text: str
    truncated: bool = False
    whole: Translation | None = None


def joined(answers: Sequence[Translation]) -> Translation:
    """The translations of consecutive sentences, as one."""
    return replace(
        answers[0],
        source=" ".join(each.source for each in answers),
        text=" ".join(each.text for each in answers),
        score=sum(each.score for each in answers) / len(answers),
        finished=all(each.finished for each in answers),
        tokens=[token for each in answers for token in each.tokens],
        parts=[part for each in answers for part in each.parts],
        alternatives=[],
    )


def _block_diagonal(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """The weights of consecutive sentences as one matrix: no sentence attends to another."""
    whole = np.zeros((sum(len(b) for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        whole[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return whole
