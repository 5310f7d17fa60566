"""A folder for what clients send: removed when the server ends or, if it was killed, by the next one that starts."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

PREFIX = "regard-spool-"
MARK = ".in-use"  # written once the folder is locked: a folder without it is just being made


class Spool:
    """A temporary folder that is locked as long as its process lives, however that ends."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)  # closed in child processes
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        (self.folder / MARK).touch()
        self._end = weakref.finalize(self, _remove, self.folder, self._lock)

    def close(self) -> None:
        self._end()

    def temporary(self) -> tempfile.TemporaryDirectory[str]:
        """A folder within it, for as long as a request takes."""
        return tempfile.TemporaryDirectory(dir=self.folder)


def remove_left() -> list[Path]:
    """Remove the folders of servers that were killed; those of running servers and of other users stay."""
    marks = Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{MARK}")
    return [mark.parent for mark in marks if _removed_if_left(mark.parent)]


def _removed_if_left(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # removed meanwhile, or not ours to read
        return False
    try:
        if os.fstat(lock).st_uid != os.getuid():
            return False
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # its server runs
        return False
    else:
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        os.close(lock)
