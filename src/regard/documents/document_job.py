"""The state of one document's translation: input, encoded output written atomically, and counts of segments."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from regard.data.files import atomic_write
from regard.data.formats.encodings import UTF8, missing_characters, read_encoded
from regard.documents.markup import Translate, Translated

BATCH = 256  # segments handed to the translator at once
SPOOL = 1 << 26  # bytes of output kept in memory until its encoding is decided
MARK = "\ufeff"
QUALITY_NOTE, MEMORY_NOTE = "estimated quality", "memory match"  # how the notes on doubtful translations begin
Item = TypeVar("Item")


@dataclass(slots=True)
class Report:
    """How many segments were translated, kept unchanged and skipped; the latter two by reason."""

    translated: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        kept, skipped = (
            [f"{reasons.total():,} {name} ({', '.join(f'{count:,} {reason}' for reason, count in reasons.items())})"]
            if reasons
            else []
            for name, reasons in (("kept", self.kept), ("skipped", self.skipped))
        )
        return ", ".join([*kept, f"{self.translated:,} new", *skipped])


@dataclass(slots=True)
class DocumentJob:
    """A document to translate, the translator, and the options.

    `write` takes the text of the output, or the bytes of one that is not text."""

    path: Path
    encoding: str
    write: Callable[[Any], object]
    translator: Translate
    source: str
    target: str
    overwrite: bool = False
    review: bool = False  # mark new translations as needing review, in formats that support it
    review_below: float = 0.0  # mark new translations of a lower estimated quality, and flagged ones; 0: none
    report: Report = field(default_factory=Report)
    _doubtful: dict[str, Translated] = field(default_factory=dict, init=False)  # by the text that was sent

    def translate(self, texts: list[str]) -> list[str | Translated]:
        """Translate texts in batches."""
        outputs = [output for batch in batches(texts) for output in self.translator(batch)]
        for text, output in zip(texts, outputs, strict=False):  # the caller refuses another number of outputs
            if isinstance(output, Translated) and (output.is_similar or self._is_poor(output)):
                self._doubtful[text] = output
        return outputs

    def _is_poor(self, output: Translated) -> bool:
        below = self.review_below
        return bool(below) and output.quality is not None and (output.quality < below or bool(output.flags))

    def doubt(self, sent: Iterable[str]) -> str:
        """Why the translation of these texts is to be reviewed, in words: it is that of a similar segment, or its
        estimated quality is low; empty if neither."""
        found = [self._doubtful[text] for text in sent if text in self._doubtful] if self._doubtful else []
        similar, poor = [each.similarity for each in found if each.is_similar], list(filter(self._is_poor, found))
        words = [f"{MEMORY_NOTE} {min(map(float, filter(None, similar))):.2f}"] if similar else []
        words += [f"{QUALITY_NOTE} {min(each.quality or 0.0 for each in poor):.2f}"] if poor else []
        return ", ".join([*words, *dict.fromkeys(flag for each in poor for flag in each.flags)])

    def translate_counted(self, texts: list[str]) -> list[str | Translated]:
        """Translate and count every text as a segment."""
        self.report.translated += len(texts)
        return self.translate(texts)

    def lines(self) -> Iterator[str]:
        """The lines with their line ends; a byte order mark is copied to the output."""
        for number, line in enumerate(encoded_lines(self.path, self.encoding)):
            if number == 0 and line.startswith(MARK):
                self.write(MARK)
                line = line[1:]
            yield line

    def text(self) -> str:
        return "".join(self.lines())


def encoded_lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file with their line ends; \\r alone ends those of old Mac files."""
    for line in read_encoded(path, encoding):
        yield from [line] if line.endswith("\n") or "\r" not in line else re.findall(r"[^\r]*\r|[^\r]+", line)


class TextSpan(NamedTuple):
    """A part of a file, and its text: as people read it, or as it is to be written."""

    start: int
    end: int
    text: str


def edited(text: str, edits: Iterable[tuple[int, int, str]]) -> str:
    """The text with edits (start, end, new text), which do not overlap."""
    parts, done = [], 0
    for start, end, new in sorted(edits):
        parts += [text[done:start], new]
        done = end
    return "".join([*parts, text[done:]])


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


@contextmanager
def encoded_write(path: Path, encoding: str, *, references: bool = False) -> Iterator[Callable[[str], object]]:
    """Write text in an encoding.

    Characters that it lacks become references (&#8364;); without `references` the file is UTF-8 then, with a warning.
    """
    with atomic_write(path) as out:
        if encoding == UTF8:
            yield lambda text: out.write(text.encode())
            return
        with tempfile.SpooledTemporaryFile(SPOOL) as spool:
            yield lambda text: spool.write(text.encode())
            spool.seek(0)
            missing = "" if references else missing_characters((line.decode() for line in spool), encoding)
            if missing:
                shown = " ".join(missing[:10]) + (" …" if len(missing) > 10 else "")
                warnings.warn(f"{path}: {encoding} lacks {shown}; written in UTF-8 instead", stacklevel=2)
            spool.seek(0)
            for line in spool:
                out.write(line if missing else line.decode().encode(encoding, "xmlcharrefreplace"))
