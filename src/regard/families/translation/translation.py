"""The search for translations: source sentences as token ids, in batches of similar length."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from regard.data.batch import pad_rows
from regard.data.tokenizers.pair import PairTokenizer
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.look.forced_pass import AlignmentSettings, Pass
from regard.look.word_alignment import Link
from regard.search.constraints import Constraints
from regard.search.pipeline import batches_by_length
from regard.search.protocols import TokenSourceModel
from regard.search.search import Hypothesis, search
from regard.search.settings import SearchSettings, Vocabulary
from regard.search.start import SearchStart, from_source

if TYPE_CHECKING:
    from regard.families.translation.glossary import Glossary
    from regard.families.translation.quality import Assessment, Flag
    from regard.families.translation.terms import TermUse
    from regard.families.translation.translator import Translator


Part = tuple[str, list[int]]  # a sentence of the source, and the token ids that answer it


@dataclass(frozen=True)
class Translation:
    """One translated text. Its attention is computed when it is first asked for, by one forced pass."""

    source: str
    text: str
    score: float
    finished: bool  # False if the length limit was reached before the end of a sentence, or one has no translation
    tokens: list[str]
    to: str = ""
    prefix: str = ""  # the beginning that was given
    glossary: Glossary | None = field(default=None, repr=False)  # the terms that were given, if any
    remembered: float | None = None  # from a translation memory: the similarity of the segment found there
    parts: Sequence[Part] = field(default=(), repr=False)
    alternatives: list[Translation] = field(default_factory=list)
    translator: Translator | None = field(default=None, repr=False, compare=False)

    @property
    def truncated(self) -> bool:
        """Whether something may be missing: a limit was reached, or a sentence became nothing."""
        return not self.finished

    @cached_property
    def repeated(self) -> bool:
        """Whether it says something over and over that the source does not."""
        if self.translator is None:
            return False
        rows = self.translator.tokenizer.source_ids([source for source, _ in self.parts], self.to)
        return any(
            self.translator.repeats(source, row, ids) for (source, ids), row in zip(self.parts, rows, strict=True)
        )

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
        if self.glossary is None:
            return []
        from regard.families.translation.terms import term_uses

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
        assert self.translator is not None
        return alignments(self.translator, [self.parts], self.to)[0]

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


def alignments(translator: Translator, answers: Sequence[Sequence[Part]], to: str) -> list[list[Link]]:
    """The alignment of each of many answers, given as their `parts`: all sentences are passed through the model in
    batches of similar length."""
    settings, parts = translator.aligning(), [part for parts in answers for part in parts]
    order = sorted(range(len(parts)), key=lambda place: len(parts[place][1]))
    passes = translator.passes(
        [parts[place][0] for place in order], [parts[place][1] for place in order], to=to, layers=settings.layer
    )
    recorded, places = dict(zip(order, passes, strict=True)), iter(range(len(parts)))
    return [_answer_links([(source, recorded[next(places)]) for source, _ in each], settings) for each in answers]


def _answer_links(passes: Sequence[tuple[str, Pass]], settings: AlignmentSettings) -> list[Link]:
    """The links of consecutive sentences as those of one text."""
    links, sources, targets = list[Link](), 0, 0
    for source, each in passes:
        links += [(s + sources, t + targets) for s, t in each.links(settings)]
        sources += len(source.split())
        targets += each.target_words
    return links


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


# (source, token ids of its translation, target language, layer) -> the recorded attention
RecordPass = Callable[[str, list[int], str, str], Pass]


class AnswerText:
    """Makes texts of the token ids that a search found.

    An unknown token becomes the source word that it attends to most (Luong 2015). Where the source has unknown words
    too, it becomes one of these, because that is what an unknown token most often stands for.
    """

    def __init__(self, tokenizer: PairTokenizer, alignment: AlignmentSettings | None, record_pass: RecordPass):
        self.tokenizer, self.alignment, self.record_pass = tokenizer, alignment, record_pass

    def text(self, source: str, ids: list[int], to: str, prefix: str = "") -> str:
        """The text of a finished answer, with unknown words copied from the source."""
        words, copied = source.split(), self.tokenizer.source.copied
        copies = [copied(words[place]) for place in self._copied_places(source, ids, to)]
        return self.decode(ids, prefix, copies)

    def decode(self, ids: list[int], prefix: str, copies: Sequence[str] = ()) -> str:
        """The text of token ids, with `copies` in place of unknown tokens; a forced `prefix` is kept as written."""
        target = self.tokenizer.target
        text, forced = target.decode(ids, unknown=copies), target.encode([prefix])[0]
        if not prefix:
            return text
        if ids == forced[: len(ids)]:  # no more than the prefix is decoded, perhaps not even all of it
            return prefix.rstrip()
        said = target.decode(forced, unknown=copies)
        rest = text.removeprefix(said) if text.startswith(said) else f" {target.decode(ids[len(forced) :])}"
        return f"{prefix.rstrip()}{rest}".rstrip()

    def final_ids(self, ids: list[int]) -> list[int]:
        """The ids whose text is final while a search runs: up to the last whole word, and to the first unknown one."""
        if self.tokenizer.target.unknown in ids:
            ids = ids[: ids.index(self.tokenizer.target.unknown)]
        words = self.tokenizer.target.words_of(ids)
        return [each for each, word in zip(ids, words, strict=True) if word < max(words)]

    def copied_words(self, answer: Translation) -> list[UnknownWord]:
        """The words of the source that were copied into a translation."""
        found, end = list[UnknownWord](), 0
        for part, ids in answer.parts:
            begin = answer.source.index(part, end)
            end = begin + len(part)
            words = list(re.finditer(r"\S+", part))
            given = answer.prefix if end == len(part) else ""  # unknown words of the prefix are not copies
            said = self.tokenizer.target.encode([given])[0].count(self.tokenizer.target.unknown)
            for place in self._copied_places(part, ids, answer.to)[said:]:
                first, last = _without_punctuation(words[place], begin)
                found.append(UnknownWord(answer.source[first:last], first, last))
        return found

    def _copied_places(self, source: str, ids: list[int], to: str) -> list[int]:
        """For each unknown token of an answer the number of the source word that replaces it."""
        unknown = self.tokenizer.target.unknown
        if unknown not in ids or self.alignment is None:
            return []
        seen = self.record_pass(source, ids, to, self.alignment.layer)
        tokens = zip(self.tokenizer.source_ids([source], to)[0], seen.source_words_of, strict=True)
        unread = {word for token, word in tokens if token == self.tokenizer.source.unknown}
        heaviest = seen.heaviest_words(self.alignment, among=unread)
        return [heaviest[place] for place, token in enumerate(ids) if token == unknown]


def _without_punctuation(word: re.Match[str], offset: int) -> tuple[int, int]:
    """Where a word begins and ends without the punctuation around it."""
    core = re.search(r"\w(.*\w)?", word[0]) or re.search(r".+", word[0])
    assert core is not None
    return offset + word.start() + core.start(), offset + word.start() + core.end()


if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class SourceSearch:
    """A model with what a search needs to know of its tokenizer: the padding of sources, and the target's specials."""

    model: TokenSourceModel
    vocabulary: Vocabulary
    pad: int
    device: torch.device

    def start(
        self,
        rows: Sequence[Sequence[int]],
        beginnings: Sequence[Sequence[int]],
        settings: SearchSettings,
        constraints: Sequence[Constraints] | None = None,
    ) -> SearchStart:
        """Let the model read source sentences; all are given as token ids, and so are the beginnings of answers."""
        source, mask = (part.to(self.device) for part in pad_rows(rows, self.pad))
        forced = beginnings if any(beginnings) else None
        return from_source(
            self.model, source, mask, settings, self.vocabulary.start, prefixes=forced, constraints=constraints
        )

    def search(
        self,
        rows: Sequence[Sequence[int]],
        beginnings: Sequence[Sequence[int]],
        settings: SearchSettings,
        constraints: Sequence[Constraints | None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Search in batches of similar length; those without constraints apart from the others."""
        terms = constraints or [None] * len(rows)
        answers: list[list[Hypothesis]] = [[] for _ in rows]
        for some in ([i for i, each in enumerate(terms) if (each is None) == free] for free in (True, False)):
            for places in batches_by_length([len(rows[i]) for i in some], settings.width):
                chosen = [some[place] for place in places]
                asked = [each for i in chosen if (each := terms[i]) is not None] or None
                start = self.start([rows[i] for i in chosen], [beginnings[i] for i in chosen], settings, asked)
                found = search(self.model, start, settings, self.vocabulary)
                for i, hypotheses in zip(chosen, found, strict=True):
                    answers[i] = hypotheses
        return answers
