"""Training pairs that a translator makes: back-translation of monolingual text, and distillation of a teacher.

Back-translation (Sennrich et al. 2016) translates text of the target language with a model of the reverse direction.
Its source side is marked by a tag (Caswell et al. 2019), so that a model learns from it without imitating its errors.
The tag is ordinary text, which every tokenizer can read. Distillation (Kim & Rush 2016) replaces the translations of a
corpus by those of a teacher, which are easier to learn for a smaller model.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sacrebleu

from regard.config import Config
from regard.data.files import Parts
from regard.data.formats.encodings import UTF8, text_codec
from regard.data.formats.filters import FilterConfig, PairFilter
from regard.data.formats.lines import read_lines, refuse
from regard.data.formats.pairs import SUFFIXES, Pair, read_pairs
from regard.data.formats.tables import format_of
from regard.documents.document_job import encoded_write
from regard.documents.language_id import choose_language
from regard.errors import DataError, UsageError
from regard.families.translation.translation import Translation
from regard.families.translation.translator import Translator

TAG = "<bt>"
PART = 512  # texts that a process translates and stores at once
KEPT = "kept"


class Item(NamedTuple):
    """A text to translate and, if the corpus has one, its translation by a person."""

    text: str
    reference: str = ""


class AnswerFilters(Config):
    """Which answers become training pairs; None switches a limit off."""

    max_ratio: float | None = 3.0  # longer to shorter side in characters
    min_score: float | None = None  # the score of a translation: by default the mean log-probability of its tokens
    copies: bool = False  # keep answers that are their input
    any_language: bool = False  # keep answers in another language than the one asked for


@dataclass(frozen=True)
class Synthesis:
    """Makes pairs with a translator.

    `backwards` puts the answers on the source side, behind `tag`. With several `n_best` answers the one closest to the
    reference by chrF is taken. `changes` are values of SearchSettings.
    """

    translator: Translator
    to: str
    filters: AnswerFilters
    backwards: bool
    tag: str = TAG
    n_best: int = 1
    changes: tuple[tuple[str, Any], ...] = ()

    @property
    def languages(self) -> tuple[str, str]:
        """The source and target language of the pairs."""
        read, written = self.translator.tokenizer.source_language, self.translator.target_language(self.to)
        return (written, read) if self.backwards else (read, written)

    def write(self, source: Path, output: Path, parts: Parts, wait: Callable[[], None]) -> Counter[str]:
        """Write the pairs made from the texts of `source`, going on after the parts that are there; counts the pairs
        kept and dropped. Only the first of several processes gets counts."""
        counts = Counter[str]()

        def join(places: Sequence[Path]) -> None:
            counts.update(self._join(places, output))

        parts.work(read_items(source, *self._read_as()), PART, self._part, join, wait)
        return counts

    def _read_as(self) -> tuple[str, str]:
        """The languages of an input of pairs: the one that is read first."""
        source, target = self.languages
        return (target, source) if self.backwards else (source, target)

    def _part(self, items: list[Item]) -> bytes:
        """The answers to some texts with their verdicts, as lines of JSON."""
        rows = zip(items, self._answers(items), strict=True)
        return "".join(json.dumps([item.text, *self._judged(item, answer)]) + "\n" for item, answer in rows).encode()

    def _answers(self, items: Sequence[Item]) -> Iterator[Translation | None]:
        """A translation for every text, None for those that the model cannot read."""
        readable = [self._reads(item.text) for item in items]
        texts = [item.text for item, good in zip(items, readable, strict=True) if good]
        found = iter(self.translator.translate(texts, to=self.to, n_best=self.n_best, **dict(self.changes)))
        return (next(found) if good else None for good in readable)

    def _reads(self, text: str) -> bool:
        try:
            return bool(self.translator.sentences(text))
        except DataError:
            return False

    def _judged(self, item: Item, answer: Translation | None) -> tuple[str, str]:
        """The answer to a text, and why it is dropped, or `kept`."""
        if answer is None:
            return "", "unreadable" if item.text.strip() else "empty"
        best = _closest(answer, item.reference) if self.n_best > 1 else answer
        return best.text, self._verdict(item.text, best)

    def _verdict(self, text: str, answer: Translation) -> str:
        if answer.truncated:
            return "truncated"
        if self.filters.min_score is not None and answer.score < self.filters.min_score:
            return "score"
        read, written = self._read_as()
        known = bool(read and written) and not self.filters.any_language
        if known and answer.text.strip() and choose_language(answer.text, [written], read).language != written:
            return "language"
        return KEPT

    def _join(self, places: Sequence[Path], output: Path) -> Counter[str]:
        """Write the pairs of all parts that pass every filter; one `PairFilter` sees all, so it finds repetitions."""
        counts = Counter[str]()

        def judged() -> Iterator[Pair]:
            for place in places:
                for line in place.read_text(encoding=UTF8).splitlines():
                    text, answer, verdict = json.loads(line)
                    if verdict == KEPT:
                        yield Pair(answer, text) if self.backwards else Pair(text, answer)
                    else:
                        counts[verdict] += 1

        config = FilterConfig.parse({"max_ratio": self.filters.max_ratio, "copies": self.filters.copies})
        keep = PairFilter(config)
        with encoded_write(output, text_codec(UTF8)) as write:
            for pair in keep(judged()):
                source = f"{self.tag} {pair.source}" if self.backwards and self.tag else pair.source
                write(_line(output, self.languages, source, pair.target))
        return counts + Counter(keep.report)


def read_items(path: Path, read: str, written: str) -> Iterable[Item]:
    """The texts of a plain file, one a line, or the pairs of a corpus in which language `read` is to be translated."""
    if format_of(path) in SUFFIXES:
        return (Item(pair.source, pair.target) for pair in read_pairs(path, read, written))
    return (Item(line) for line in read_lines(path, refuse))


def check_output(output: Path) -> None:
    """Refuse an output that exists, or whose suffix says no format of pairs."""
    if output.suffix not in (".tsv", ".jsonl"):
        raise UsageError(f"{output}: pairs are written as .tsv or .jsonl; give the output one of these suffixes")
    if output.exists():
        raise UsageError(f"{output} exists already; give another name, or remove it")


def _closest(answer: Translation, reference: str) -> Translation:
    """The answer most like the reference."""
    return max((answer, *answer.alternatives), key=lambda each: sacrebleu.sentence_chrf(each.text, [reference]).score)


def _line(output: Path, languages: tuple[str, str], source: str, target: str) -> str:
    if output.suffix == ".tsv":
        return "\t".join(" ".join(side.split()) for side in (source, target)) + "\n"
    names = languages if all(languages) else ("source", "target")
    return json.dumps({"translation": dict(zip(names, (source, target), strict=True))}, ensure_ascii=False) + "\n"
