"""Read lines of text: only LF and CRLF end a line, and invalid bytes are reported with their offsets."""

from __future__ import annotations

import gzip
import re
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from regard.errors import DataError

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
