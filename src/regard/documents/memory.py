"""Translation memories: segments that were translated before, found again exactly or by similarity.

The similarity of two segments is that of RapidFuzz: twice the length of their longest common subsequence of characters,
divided by the sum of their lengths. An index leaves out what cannot be similar enough: segments of another length, and
those with too few letters in common. It leaves out nothing else, so the best match is that of a full comparison.
"""

from __future__ import annotations

import json
import math
import os
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
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


MOST_BYTES = 256 * 2**20  # of a file; what comes later is not kept
MOST_MATCHES = 3
RECENT = 1000  # segments that are searched without an index; more of them are indexed
TEXTS = ("q", "s", "source", "target")


class Kept(NamedTuple):
    """The translation of a segment, and whether a person wrote it."""

    text: str
    corrected: bool


class KeptAnswers:
    """Answers that a server keeps in a file, and the corrections of them: a translation memory that grows.

    The file has one JSON object a line, with the keys of LibreTranslate's suggestions (q, s, source, target), the model
    and the time. So it is also a file of pairs: `regard train` and `--memory` read it. Each line is written at once,
    and a last line that was cut short by a crash is dropped when the file is opened again. Several threads may use it.
    """

    def __init__(self, path: Path):
        self.path, self._lock = path, threading.Lock()
        self._answers: dict[tuple[str, str], dict[str, Kept]] = {}
        self._indexed: dict[tuple[str, str], TranslationMemory] = {}
        self._recent: dict[tuple[str, str], dict[str, str]] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError as error:
            raise DataError(f"cannot keep answers in {path}: {error.strerror}") from None
        self._read()

    def keep(
        self,
        languages: tuple[str, str],
        answers: Iterable[tuple[str, str]],
        *,
        model: str = "",
        corrected: bool = False,
    ) -> None:
        """Remember answers, given as (segment, translation). A model's answer never replaces a correction."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        with self._lock:
            lines = []
            for text, answer in answers:
                if answer.strip() and self._remember(languages, text, Kept(answer, corrected)):
                    row = dict(zip(TEXTS, (text, answer, *languages), strict=True))
                    lines.append(json.dumps({**row, "model": model, "time": time, "corrected": corrected}))
            if lines and os.fstat(self._file).st_size < MOST_BYTES:
                os.write(self._file, "".join(f"{line}\n" for line in lines).encode())

    def correction(self, languages: tuple[str, str], text: str) -> str | None:
        """What a person wrote as the translation of a segment."""
        found = self._answers.get(languages, {}).get(normal_segment(text))
        return found.text if found and found.corrected else None

    def find(self, languages: tuple[str, str], text: str) -> list[MemoryMatch]:
        """Similar segments, best first; the same segment only if it was corrected."""
        with self._lock:
            recent = self._recent.get(languages, {})
            if len(recent) > RECENT or languages not in self._indexed:
                known = self._answers.get(languages, {})
                self._indexed[languages] = TranslationMemory((source, kept.text) for source, kept in known.items())
                self._recent[languages] = recent = {}
            indexed, newer = self._indexed[languages], TranslationMemory(recent.items())
        found = newer.find(text)
        found += [each for each in indexed.find(text) if each.source not in recent]
        if self.correction(languages, text) is None:
            found = [each for each in found if each.source != normal_segment(text)]
        return sorted(found, key=lambda each: -each.similarity)[:MOST_MATCHES]

    def close(self) -> None:
        os.close(self._file)

    def _remember(self, languages: tuple[str, str], text: str, kept: Kept) -> bool:
        """Whether this is new."""
        known, key = self._answers.setdefault(languages, {}), normal_segment(text)
        before = known.get(key)
        if not key or before == kept or (before and before.corrected and not kept.corrected):
            return False
        known[key] = kept
        self._recent.setdefault(languages, {})[key] = kept.text
        return True

    def _read(self) -> None:
        content, broken = self.path.read_bytes(), 0
        *lines, last = content.split(b"\n")
        if last:  # the end of a line that was being written when the server was killed
            os.ftruncate(self._file, len(content) - len(last))
        for line in filter(None, lines):
            row = _parse(line)
            if row is None:
                broken += 1
            else:
                q, s, source, target = (row[name] for name in TEXTS)
                self._remember((source, target), q, Kept(s, bool(row.get("corrected"))))
        if broken:
            warnings.warn(f"{self.path}: {broken} of {len(lines)} lines are not kept answers", stacklevel=2)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and all(isinstance(row.get(name), str) for name in TEXTS) else None
