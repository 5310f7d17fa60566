"""Files that are written whole or not at all."""

from __future__ import annotations

import gzip
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TextIO, cast

from regard.errors import DataError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name only when it is complete and synced to disk; a name in .gz packs it.

    A link keeps pointing at its file. A device or a pipe (/dev/stdout) has no content to protect: it is written to.
    """
    place = path.resolve()
    partial = place.with_name(f".{place.name}.{os.getpid()}.partial")
    special = place.exists() and not place.is_file() and not place.is_dir()
    try:
        with (place if special else partial).open("wb") as file:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as packed:
                    yield cast(IO[bytes], packed)
            else:
                yield file
            file.flush()
            if not special:
                os.fsync(file.fileno())
        if not special:
            partial.replace(place)
    except BrokenPipeError:
        raise  # the reader of a pipe has gone, and no file has failed
    except OSError as error:
        raise DataError(f"{path}: not written ({error.strerror or error})") from None
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes | str) -> None:
    """Write a file atomically, text as UTF-8; folders that it needs are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_text(path: Path) -> Iterator[TextIO]:
    """`atomic_write` for UTF-8 text, with line ends as they are given."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        try:
            yield text
        finally:
            text.detach()  # the file is still to be synced
