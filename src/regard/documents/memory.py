"""Translation memories: segments that were translated before, found again exactly or by similarity.

The similarity of two segments is that of RapidFuzz: twice the length of their longest common subsequence of characters,
divided by the sum of their lengths. An index leaves out what cannot be similar enough: segments of another length, and
those with too few letters in common. It leaves out nothing else, so the best match is that of a full comparison.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from regard.data.formats.pairs import read_pairs
from regard.data.formats.tables import find_columns, format_of, read_rows
from regard.errors import DataError, UsageError
from regard.optional import needed

EXACT = "exact"
LEAST = 0.7  # similarity of the matches that are shown
BUCKETS = 48  # letters are counted by their number modulo this
MOST = 255  # of one letter that is counted


class Change(NamedTuple):
    """A part of a text beside a remembered source: in both, only in the text, or only in the memory."""

    kind: Literal["same", "new", "gone"]
    text: str


class MemoryMatch(NamedTuple):
    """A remembered translation of a segment like the one asked for."""

    source: str
    target: str
    similarity: float  # 1: the same segment

    def changes(self, text: str) -> list[Change]:
        """What differs, word by word: the text against the source of this match."""
        old, new = self.source.split(), text.split()
        found: list[Change] = []
        for kind, a, b, c, d in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
            if kind == "equal":
                found.append(Change("same", " ".join(new[c:d])))
                continue
            found += [Change("gone", " ".join(old[a:b]))] if b > a else []
            found += [Change("new", " ".join(new[c:d]))] if d > c else []
        return found

    def to_json(self, text: str) -> dict[str, Any]:
        changes = [each._asdict() for each in self.changes(text)]
        return {**self._asdict(), "similarity": round(self.similarity, 4), "changes": changes}


class TranslationMemory:
    """Segments with their translations; of several translations of a segment, the last one counts."""

    def __init__(self, pairs: Iterable[tuple[str, str]]):
        self._targets = {normal_segment(source): target.strip() for source, target in pairs}
        self.broken = 0  # segments of the files that were read which have no source or no translation

    def __len__(self) -> int:
        return len(self._targets)

    @classmethod
    def read(cls, paths: Sequence[str | Path], source: str, target: str) -> TranslationMemory:
        """Read TMX, TSV and other files of pairs. Broken segments are left out, with one warning for each file."""
        pairs, broken = list[tuple[str, str]](), 0
        for path in map(Path, paths):
            if not path.is_file():
                raise DataError(f"{path}: there is no such translation memory")
            found = list(_read(path, source, target))
            whole = [pair for pair in found if pair[0].strip() and pair[1].strip()]
            if lost := len(found) - len(whole):
                warnings.warn(f"{path}: {lost} of {len(found)} segments have no source or no translation", stacklevel=2)
            if not found:
                warnings.warn(f"{path}: has no segments from {source} into {target}", stacklevel=2)
            pairs, broken = [*pairs, *whole], broken + lost
        memory = cls(pairs)
        memory.broken = broken
        return memory

    def exact(self, text: str) -> MemoryMatch | None:
        """The translation of the same segment; white space does not count."""
        source = normal_segment(text)
        target = self._targets.get(source)
        return None if target is None else MemoryMatch(source, target, 1.0)

    def find(self, text: str, *, count: int = 3, least: float = LEAST) -> list[MemoryMatch]:
        """The most similar segments, best first; of equally similar ones, the shorter and earlier first."""
        if not 0.0 < least <= 1.0:
            raise UsageError(f"a similarity is above 0 and at most 1, not {least}")
        text = normal_segment(text)
        if not text or not self._targets:
            return []
        fuzz, process = (needed(f"rapidfuzz.{part}", extra="memory") for part in ("fuzz", "process"))
        places = self._possible(text, least)
        choices = [self._sources[place] for place in places]
        found = process.extract(text, choices, scorer=fuzz.ratio, limit=count, score_cutoff=100 * least)
        return [MemoryMatch(source, self._targets[source], score / 100) for source, score, _ in found]

    def used(self, text: str, least: float) -> MemoryMatch | None:
        """The match that replaces a translation: exact, or of at least this similarity."""
        found = self.exact(text)
        if found is None and least < 1.0:
            found = next(iter(self.find(text, count=1, least=least)), None)
        return found

    def _possible(self, text: str, least: float) -> list[int]:
        """The places of segments that may be similar enough: no others can be."""
        shortest = math.ceil(len(text) * least / (2 - least) - 1e-9)
        longest = math.floor(len(text) * (2 - least) / least + 1e-9)
        first, last = np.searchsorted(self._lengths, [shortest, longest + 1])
        common = np.zeros(last - first, dtype=np.uint16)
        for letters, number in zip(self._letters, _letters([text])[:, 0], strict=True):
            if number:
                common += np.minimum(letters[first:last], number)
        # letters above MOST are not counted, so segments that may have them always count as possible
        enough = 2.0 * common >= least * (self._lengths[first:last] + len(text)) - 1e-6
        return (first + np.flatnonzero(enough | (self._lengths[first:last] > MOST))).tolist()

    @cached_property
    def _sources(self) -> list[str]:
        """The sources, the shortest first."""
        return sorted(self._targets, key=len)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(source) for source in self._sources])

    @cached_property
    def _letters(self) -> np.ndarray:
        return _letters(self._sources)


def memory_use(given: str) -> float | None:
    """The similarity from which a memory replaces a translation: `exact`, or a number; None if nothing was given."""
    if not given:
        return None
    try:
        least = 1.0 if given == EXACT else float(given)
    except ValueError:
        least = math.nan
    if not 0.5 <= least <= 1.0:
        raise UsageError(f"--memory-use is {given!r}; it is {EXACT}, or a similarity from 0.5 to 1")
    return least


def _read(path: Path, source: str, target: str) -> Iterator[tuple[str, str]]:
    """The pairs of a file; rows of a table that lack a column have an empty side."""
    if format_of(path) not in (".tsv", ".csv"):
        yield from ((pair.source, pair.target) for pair in read_pairs(path, source, target, errors="replace"))
        return
    columns = None
    for _, row in read_rows(path, source, target, "replace"):
        if columns is None:
            columns = find_columns(row, source, target)
            if columns.named:
                continue
        cells = [row[place] if place < len(row) else "" for place in (columns.source, columns.target)]
        if any(row):
            yield cells[0], cells[1]


def _letters(texts: Sequence[str]) -> np.ndarray:
    """How often each text has the letters of each bucket: [BUCKETS, texts]."""
    counts = np.zeros((BUCKETS, len(texts)), dtype=np.uint8)
    for column, text in enumerate(texts):
        for letter, number in Counter(text).items():
            bucket = ord(letter) % BUCKETS
            counts[bucket, column] = min(MOST, int(counts[bucket, column]) + number)
    return counts


def normal_segment(text: str) -> str:
    """A segment without differences in white space."""
    return " ".join(text.split())
