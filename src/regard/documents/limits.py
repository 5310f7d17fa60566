"""Refuse a document by a cheap count, before it is parsed and split: a few kilobytes may unpack to millions of
paragraphs, and parsing these would take gigabytes.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from regard.data.formats.lines import open_bytes
from regard.documents.office import KINDS as OFFICE
from regard.errors import DataError

CHUNK = 1 << 20
BYTES_PER_UNIT = 16  # of a document of the largest size, for each of the most lines and tags
CHARACTERS_PER_SEGMENT = 20  # likewise, of the longest text for each of the most segments


class Limits(NamedTuple):
    """The largest document that is read: bytes of its text and markup, unpacked, and characters to translate."""

    size: int
    characters: int

    def check_file(self, path: Path) -> None:
        """Refuse a document by its unpacked bytes, lines and tags."""
        size = lines = tags = 0
        for chunk in _unpacked(path):
            size, lines, tags = size + len(chunk), lines + chunk.count(b"\n"), tags + chunk.count(b"<")
            _refuse(path, size, self.size, "bytes of text and markup, unpacked")
            _refuse(path, lines, self.size // BYTES_PER_UNIT, "lines")
            _refuse(path, tags, self.size // BYTES_PER_UNIT, "tags")

    def check_text(self, path: Path, segments: int, characters: int) -> None:
        """Refuse a document by what is to be translated."""
        _refuse(path, characters, self.characters, "characters to translate")
        _refuse(path, segments, self.characters // CHARACTERS_PER_SEGMENT, "segments to translate")


def _refuse(path: Path, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise DataError(f"{path}: has more than {limit:,} {what}, which is the limit here; send it in parts")


def _unpacked(path: Path) -> Iterator[bytes]:
    """The text of a document in chunks: of an office document the XML of its archive."""
    with open_bytes(path) as stream:
        if path.suffix not in OFFICE:
            yield from _chunks(stream)
            return
        try:
            with zipfile.ZipFile(stream) as archive:
                for info in archive.infolist():
                    if info.filename.endswith(".xml") and not info.flag_bits & 1:
                        with archive.open(info) as part:
                            yield from _chunks(part)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError):
            return  # the reader of the format says what is wrong


def _chunks(stream: IO[bytes]) -> Iterator[bytes]:
    while chunk := stream.read(CHUNK):
        yield chunk
