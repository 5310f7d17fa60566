"""The encoding of a text file: found with care, kept for what is written, never guessed in silence.

A byte order mark decides; then what the file states itself (a charset, an XML declaration); then zero bytes, which tell
UTF-16 and UTF-32; then whether all of it is UTF-8. Only what is none of these is read in the encoding that was usual
for its language before UTF-8, with a warning. A file that is damaged or no text is refused.
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
    codecs.BOM_UTF32_LE: "utf-32-le", codecs.BOM_UTF32_BE: "utf-32-be",  # before UTF-16, whose mark begins one of them
    codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be", codecs.BOM_UTF8: UTF8,
}  # fmt: skip
LEGACY = {  # by language, as browsers assume them for pages that do not say; all others use windows-1252
    "cp1250": "bs cs hr hu pl ro sk sl sq", "cp1251": "be bg kk ky mk mn ru sr tg tt uk", "cp1253": "el",
    "cp1254": "az tr", "cp1255": "he yi", "cp1256": "ar fa ps ug ur", "cp1257": "et lt lv", "cp1258": "vi",
    "cp874": "th", "cp932": "ja", "euc_jp": "ja", "gb18030": "zh", "big5": "zh", "cp949": "ko",
}  # fmt: skip
SAMPLE = 1 << 16  # bytes at the beginning that are looked at closely
NOT_TEXT = re.compile("[\0-\x08\x0e-\x19\x1c-\x1f\x7f]")  # control characters that no text has
Stated = Callable[[bytes], str | None]


def find_encoding(path: Path, language: str, stated: Stated = lambda head: None) -> str:
    """The encoding of a file; `stated` finds in its first bytes what it says of itself, if anything."""
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
    damage = _damage(path, surely=found == UTF8)
    if damage is None:
        return UTF8
    if damage.offsets:
        raise DataError(
            f"{damage}; mend the file, or give its encoding (utf-8: with U+FFFD in place of what is damaged)"
        )
    return _legacy(head, language, path)


def text_codec(name: str, path: Path | None = None) -> str:
    """Python's name of an encoding for text; `path` is the file that states it, None if the user did."""
    where, error = (f"{path} says that it is in", DataError) if path else ("--encoding:", UsageError)
    with suppress(LookupError):
        found = codecs.lookup(name)
        if getattr(found, "_is_text_encoding", True):
            return {"utf-8-sig": UTF8}.get(found.name, found.name)
    raise error(
        f"{where} {name!r}, which is not a known encoding; known are utf-8, utf-16, latin-1, cp1252 and many more"
    )


def given_encoding(path: Path, name: str) -> str:
    """The encoding that a user named; of UTF-16 and UTF-32 the byte order that the file's mark tells."""
    name = text_codec(name)
    if name not in ("utf-16", "utf-32"):
        return name
    with open_bytes(path) as stream:
        head = stream.read(4)
    found = [order for mark, order in MARKS.items() if order.startswith(name) and head.startswith(mark)]
    return found[0] if found else f"{name}-le"


def _without_mark(head: bytes) -> str | None:
    """UTF-16 or UTF-32 without a byte order mark: told by zero bytes, and only if it makes sense as text."""
    zeros = head.count(0)
    if not zeros or (head.isascii() and zeros < 0.3 * len(head)):  # which text that is all ASCII would not have
        return None
    likely: dict[str, int] = {}
    for name, width in (("utf-32-le", 4), ("utf-32-be", 4), ("utf-16-le", 2), ("utf-16-be", 2)):
        with suppress(UnicodeDecodeError):
            text = codecs.getincrementaldecoder(name)().decode(head[: len(head) - len(head) % width])
            if not NOT_TEXT.search(text) and not any(
                unicodedata.category(character) == "Cn" for character in set(text)
            ):
                likely[name] = sum(map(str.isascii, text))  # with the bytes in the wrong order hardly any is
    best = max(likely, key=likely.__getitem__, default=None)
    return best if best and likely[best] else None


def _damage(path: Path, *, surely: bool) -> Damage | None:
    """The first damage to UTF-8, None if there is none; without offsets if the file is not in UTF-8 at all."""
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
            surely = surely or b"\0" in raw
            if bad > 1000:
                break
    assert first is not None
    # text in another encoding hardly ever has a sequence that is right in UTF-8
    return first if surely or good > bad else Damage(str(path), first.line, ())


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
    """The lines of a file or binary stream with their ends, a byte order mark before the first."""
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


def lacking(chunks: Iterable[str], encoding: str) -> str:
    """The characters that an encoding does not have, each once."""
    found: dict[str, None] = {}
    for chunk in chunks:
        try:
            chunk.encode(encoding)
        except UnicodeEncodeError:
            found |= dict.fromkeys(character for character in chunk if not character.encode(encoding, "ignore"))
    return "".join(found)
