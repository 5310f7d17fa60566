"""Detect the encoding of a text file; any guess comes with a warning.

The first of these decides: a byte order mark; zero bytes, which indicate UTF-16 or UTF-32; a declaration in the file (a
charset, an XML declaration); whether the whole file is valid UTF-8. Any other file is read in the usual legacy encoding
of its language, with a warning. A damaged or binary file is an error.
"""

from __future__ import annotations

import codecs
import io
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from regard.data.formats.lines import Damage, decode, open_bytes, read_lines
from regard.errors import DataError, UsageError

UTF8 = "utf-8"
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",  # before UTF-16, whose mark is a prefix of one
    codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: UTF8,
}  # fmt: skip
LEGACY = {  # by language, as browsers assume for pages without a charset; all other languages use windows-1252
    "cp1250": "bs cs hr hu pl ro sk sl sq", "cp1251": "be bg kk ky mk mn ru sr tg tt uk", "cp1253": "el",
    "cp1254": "az tr", "cp1255": "he yi", "cp1256": "ar fa ps ug ur", "cp1257": "et lt lv", "cp1258": "vi",
    "cp874": "th", "cp932": "ja", "euc_jp": "ja", "gb18030": "zh", "big5": "zh", "cp949": "ko",
}  # fmt: skip
SAMPLE = 1 << 16  # bytes at the beginning that are examined
NOT_TEXT = re.compile("[\0-\x08\x0e-\x19\x1c-\x1f\x7f]")  # control characters that do not occur in text
Stated = Callable[[bytes], str | None]


def find_encoding(path: Path, language: str, stated: Stated = lambda head: None) -> str:
    """The encoding of a file; `stated` reads a declared encoding from its first bytes, if there is one."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; expected a file")
    if path.exists() and not path.is_file():
        raise DataError(f"{path}: not a file that can be read twice, as finding its encoding needs; give the encoding")
    with open_bytes(path) as stream:
        head = stream.read(SAMPLE)
    marked = next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
    found = marked or _without_mark(head)
    if found is None and (said := stated(head)):
        found = text_codec(said, path)
    if found not in (None, UTF8):
        return str(found)
    damage = _damage(path, is_utf8=found == UTF8)
    if damage is None:
        return UTF8
    if damage.offsets:
        raise DataError(
            f"{damage}; repair the file, or give its encoding (utf-8: with U+FFFD in place of what is damaged)"
        )
    return _legacy(head, language, path)


def text_codec(name: str, path: Path | None = None) -> str:
    """Python's name of a text encoding; `path` is the file that declares it, None if the user gave it."""
    where, error = (f"{path} says that it is in", DataError) if path else ("--encoding:", UsageError)
    with suppress(LookupError):
        found = codecs.lookup(name)
        if getattr(found, "_is_text_encoding", True):
            return {"utf-8-sig": UTF8}.get(found.name, found.name)
    raise error(
        f"{where} {name!r}, which is not a known encoding; known are utf-8, utf-16, latin-1, cp1252 and many more"
    )


def given_encoding(path: Path, name: str) -> str:
    """The encoding that a user gave; for UTF-16 and UTF-32 with the byte order of the file's byte order mark."""
    name = text_codec(name)
    if name not in ("utf-16", "utf-32"):
        return name
    with open_bytes(path) as stream:
        head = stream.read(4)
    found = [order for mark, order in MARKS.items() if order.startswith(name) and head.startswith(mark)]
    return found[0] if found else f"{name}-le"


def _without_mark(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a byte order mark, recognised by zero bytes and by decoding to valid text."""
    zeros = head.count(0)
    if not zeros or (head.isascii() and zeros < 0.3 * len(head)):  # ASCII text in UTF-16 has at least half zeros
        return None
    likely: dict[str, int] = {}
    for name, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        with suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(name)().decode(head[: len(head) - len(head) % width])
            if not NOT_TEXT.search(text) and not any(
                unicodedata.category(character) == "Cn" for character in set(text)
            ):
                likely[name] = sum(map(str.isascii, text))  # in the wrong byte order almost none is ASCII
    best = max(likely, key=likely.__getitem__, default=None)
    return best if best and likely[best] else None


def _damage(path: Path, *, is_utf8: bool) -> Damage | None:
    """The first invalid UTF-8, None if there is none; without offsets if the file is in another encoding."""
    with suppress(UnicodeDecodeError), open_bytes(path) as stream:
        decoder = codecs.getincrementaldecoder(UTF8)()
        while chunk := stream.read(1 << 20):
            if b"\0" in chunk:
                break
            decoder.decode(chunk)
        else:
            decoder.decode(b"", final=True)
            return None
    good = bad = offset = 0
    first: Damage | None = None
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            text, places = decode(raw)
            good += sum(not character.isascii() for character in text) - len(places)
            bad += len(places)
            if places and not first:
                first = Damage(str(path), number, tuple(offset + place for place in places))
            offset += len(raw)
            is_utf8 = is_utf8 or b"\0" in raw
            if bad > 1000:
                break
    assert first is not None
    # text in another encoding hardly ever contains a valid multi-byte sequence of UTF-8
    return first if is_utf8 or good > bad else Damage(str(path), first.line, ())


def _legacy(head: bytes, language: str, path: Path) -> str:
    code = re.split("[-_]", language.lower())[0]
    for name in [name for name, languages in LEGACY.items() if code in languages.split()] or ["cp1252"]:
        with suppress(UnicodeDecodeError):
            if not NOT_TEXT.search(codecs.getincrementaldecoder(name)().decode(head)):
                warnings.warn(f"{path}: not UTF-8; taken for {name} and written in it; if it is not, give its encoding "
                              "with --encoding", stacklevel=2)  # fmt: skip
                return name
    raise DataError(f"{path}: not text in UTF-8 or another encoding that {language or 'it'} is likely to be in; "
                    "if it is text, give its encoding with --encoding")  # fmt: skip


def read_encoded(path: Path | IO[bytes], encoding: str) -> Iterator[str]:
    """The lines of a file or binary stream with their line ends; a byte order mark is kept."""
    if encoding == UTF8:
        yield from read_lines(path, ends=True)
        return
    with open_bytes(path) if isinstance(path, Path) else nullcontext(path) as stream:
        try:
            with io.TextIOWrapper(stream, encoding, newline="\n") as text:
                yield from text
        except UnicodeDecodeError as error:
            name = getattr(stream, "name", path)
            raise DataError(
                f"{name}: cannot be read as {encoding} ({error}); give its encoding with --encoding"
            ) from None


def missing_characters(chunks: Iterable[str], encoding: str) -> str:
    """The distinct characters that an encoding cannot represent."""
    found: dict[str, None] = {}
    for chunk in chunks:
        try:
            chunk.encode(encoding)
        except UnicodeEncodeError:
            found |= dict.fromkeys(character for character in chunk if not character.encode(encoding, "ignore"))
    return "".join(found)
