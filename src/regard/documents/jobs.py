"""A document to translate: its text in, its translation out in the same encoding, and the count of what was done."""

from __future__ import annotations

import gzip
import os
import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, TypeVar, cast

from regard.data.formats.encodings import UTF8, lacking, read_encoded
from regard.documents.markup import Translate, Translated
from regard.errors import DataError

BATCH = 256  # segments handed to the translator at once
SPOOL = 1 << 26  # bytes of an output kept in memory before its encoding is settled
MARK = "\ufeff"
Item = TypeVar("Item")


@dataclass(slots=True)
class Report:
    """How many segments were translated, how many kept as they were and how many skipped, each with the reason."""

    translated: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        counts = [f"segments translated: {self.translated}"]
        for name, reasons in (("kept", self.kept), ("skipped", self.skipped)):
            if reasons:
                why = ", ".join(f"{count} {reason}" for reason, count in reasons.items())
                counts.append(f"{name}: {reasons.total()} ({why})")
        return ", ".join(counts)


@dataclass(slots=True)
class Job:
    """What to translate, how, and between which languages; `write` takes the text of the output."""

    path: Path
    encoding: str
    write: Callable[[str], object]
    translator: Translate
    source: str
    target: str
    overwrite: bool = False
    review: bool = False  # mark new translations as still to be reviewed, where the format can
    report: Report = field(default_factory=Report)

    def translate(self, texts: list[str]) -> list[str | Translated]:
        """Translate as many texts as there are, in batches."""
        return [output for batch in batches(texts) for output in self.translator(batch)]

    def counted(self, texts: list[str]) -> list[str | Translated]:
        """Translate and count every text as a segment."""
        self.report.translated += len(texts)
        return self.translate(texts)

    def lines(self) -> Iterator[str]:
        """The lines with their ends; a byte order mark goes straight to the output."""
        for number, line in enumerate(read_encoded(self.path, self.encoding)):
            if number == 0 and line.startswith(MARK):
                self.write(MARK)
                line = line[1:]
            # the ends of old Mac files
            yield from [line] if line.endswith("\n") or "\r" not in line else re.findall(r"[^\r]*\r|[^\r]+", line)

    def text(self) -> str:
        return "".join(self.lines())


def batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH)):
        yield batch


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes its name only when it is complete and on the disk."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise DataError(f"{path}: not written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, encoding: str, *, references: bool = False) -> Iterator[Callable[[str], object]]:
    """Write text in an encoding; characters it lacks become references (&#8364;), or all is in UTF-8 with a warning."""
    with replacing(path) as out:
        if encoding == UTF8:
            yield lambda text: out.write(text.encode())
            return
        with tempfile.SpooledTemporaryFile(SPOOL) as spool:
            yield lambda text: spool.write(text.encode())
            spool.seek(0)
            missing = "" if references else lacking((line.decode() for line in spool), encoding)
            if missing:
                warn_of_utf8(path, encoding, missing)
            spool.seek(0)
            for line in spool:
                out.write(line if missing else line.decode().encode(encoding, "xmlcharrefreplace"))


def warn_of_utf8(path: Path, encoding: str, missing: str) -> None:
    shown = " ".join(missing[:10]) + (" …" if len(missing) > 10 else "")
    warnings.warn(f"{path}: {encoding} has no {shown}; written in UTF-8 instead", stacklevel=2)
