"""Stream plain text as lines that mark the beginning of documents, so that texts may be larger than memory."""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Literal, NamedTuple, cast

from regard.errors import DataError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.xz")


def archive_members(path: Path, suffixes: Sequence[str], contents: bool = False) -> Iterator[tuple[str, bytes]]:
    """Names and, with `contents`, bytes of the files with these suffixes; nothing is written to disk."""
    try:
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                if member.isfile() and PurePosixPath(member.name).suffix.lower() in suffixes:
                    file = archive.extractfile(member) if contents else None
                    yield member.name, file.read() if file else b""
    except (tarfile.TarError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path} cannot be read as an archive ({error}); fetch it again") from None


REPLACEMENT = "\ufffd"
DAMAGED = re.compile("[\udc80-\udcff]+|\0+")
Errors = Literal["strict", "replace"]


@dataclass(frozen=True, slots=True)
class Damage:
    """Malformed UTF-8 or NUL bytes in one line of a file (offsets count from the start of the uncompressed file)."""

    file: str
    line: int
    offsets: tuple[int, ...]

    def __str__(self) -> str:
        shown = ", ".join(map(str, self.offsets[:5]))
        more = f" and {len(self.offsets) - 5} more places" if len(self.offsets) > 5 else ""
        return f"{self.file}, line {self.line}: malformed UTF-8 or NUL at byte {shown}{more}"


OnDamage = Callable[[Damage], None]


def refuse(damage: Damage) -> None:
    """Raise an error at the first damaged line; for training corpora."""
    raise DataError(f"{damage}; expected text in UTF-8: repair the file, or convert it (iconv -f ENCODING -t UTF-8)")


def warn(damage: Damage) -> None:
    """Warn, and replace the damage by U+FFFD; for text to be translated."""
    warnings.warn(f"{damage}; replaced by U+FFFD", stacklevel=2)


def on_damage(errors: Errors) -> OnDamage:
    return refuse if errors == "strict" else warn


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open a file, decompressed if it is `.gz`; errors while it is read name the file."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            yield cast(IO[bytes], stream)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: damaged or truncated gzip file ({error}); fetch or compress it again") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from None


def read_lines(file: str | Path | IO[bytes], on_damage: OnDamage = warn, *, ends: bool = False) -> Iterator[str]:
    """The lines of a file or binary stream, including empty ones; BOM and line ends are removed unless `ends`."""
    if isinstance(file, str | Path):
        with open_bytes(Path(file)) as stream:
            yield from _lines(stream, str(file), on_damage, ends)
    else:
        yield from _lines(file, str(getattr(file, "name", "input")), on_damage, ends)


def _lines(stream: IO[bytes], name: str, on_damage: OnDamage, ends: bool) -> Iterator[str]:
    offset = 0
    for number, raw in enumerate(stream, 1):
        text, bad = decode(raw)
        if bad:
            on_damage(Damage(name, number, tuple(offset + place for place in bad)))
        offset += len(raw)
        if ends:
            yield text
            continue
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")


def decode(raw: bytes) -> tuple[str, list[int]]:
    """Decode UTF-8 with U+FFFD for each run of malformed or NUL bytes; also returns the offsets of these runs."""
    if b"\0" not in raw:
        with suppress(UnicodeDecodeError):
            return raw.decode("utf-8"), []
    # surrogateescape keeps every malformed byte as one code unit, so offsets can be counted in a single pass
    text = raw.decode("utf-8", "surrogateescape")
    pieces, offsets = [], []
    end = offset = 0
    for run in DAMAGED.finditer(text):
        sound = text[end : run.start()]
        offset += len(sound.encode())
        pieces.append(sound)
        offsets.append(offset)
        offset += len(run[0])
        end = run.end()
    return REPLACEMENT.join([*pieces, text[end:]]), offsets


# Separated by blank lines; one per line; one per file; the instructions of a file of paths, which data/paths reads.
Documents = Literal["blank", "line", "file", "instructions"]


class Line(NamedTuple):
    """A line with its line end, and whether it begins a document."""

    text: str
    first: bool


def read_text(path: str | Path, documents: Documents) -> Iterator[Line]:
    """The lines of a file (also .gz). Blank lines are dropped unless every file is one document."""
    first = True
    for text in read_lines(path, refuse, ends=True):
        if documents == "file":
            yield Line(text.removeprefix("\ufeff") if first else text, first)
            first = False
        elif text.strip("\ufeff \t\r\n"):
            yield Line(text.removeprefix("\ufeff") if first else text, first or documents == "line")
            first = False
        else:
            first = True


def read_texts(paths: Sequence[str], documents: Documents) -> Iterator[Line]:
    """The lines of several files, one after another."""
    for path in paths:
        yield from read_text(path, documents)


def split_text(
    paths: Sequence[str], documents: Documents, share: float
) -> Iterator[tuple[Literal["train", "valid"], Line]]:
    """Every line with its part: the last `share` of the characters is for validation.

    Documents are not split, except whole files, which are split at the exact character.
    """
    total = sum(len(line.text) for line in read_texts(paths, documents))
    limit, seen, training = int(total * (1 - share)), 0, True
    for line in read_texts(paths, documents):
        left = limit - seen
        seen += len(line.text)
        if documents == "file":
            if left > 0:
                yield "train", Line(line.text[:left], line.first)
            if left < len(line.text):
                yield "valid", Line(line.text[max(left, 0) :], line.first or left >= 0)
        else:
            training = training and not (line.first and left <= 0)
            yield "train" if training else "valid", line
