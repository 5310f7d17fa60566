"""Files in tar archives, read in one pass without unpacking."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

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
