"""Answers that a server keeps in a file, and the corrections of them: a translation memory that grows.

The file has one JSON object a line, with the keys of LibreTranslate's suggestions (q, s, source, target), the model and
the time. So it is also a file of pairs: `regard train` and `--memory` read it. Each line is written at once, and a last
line that was cut short by a crash is dropped when the file is opened again.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from regard.documents.memory import MemoryMatch, TranslationMemory, normal_segment
from regard.errors import DataError

MOST_BYTES = 256 * 2**20  # of a file; what comes later is not kept
MOST_MATCHES = 3
RECENT = 1000  # segments that are searched without an index; more of them are indexed
TEXTS = ("q", "s", "source", "target")


class Kept(NamedTuple):
    """The translation of a segment, and whether a person wrote it."""

    text: str
    corrected: bool


class KeptAnswers:
    """Segments with their answers by language pair, in memory and in a file; several threads may use it."""

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
