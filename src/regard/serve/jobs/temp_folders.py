"""What clients send and what is half made of it: removed when the server ends or, if it was killed, by the next one."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "regard-spool-"
MARK = ".in-use"  # a file that is locked as long as its process lives, however that ends


class ServerTempFolder:
    """A temporary folder that goes with its server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._end = weakref.finalize(self, _remove, self.folder, _mark(self.folder))

    def close(self) -> None:
        self._end()

    def temporary(self) -> tempfile.TemporaryDirectory[str]:
        """A folder within it, for as long as a request takes."""
        return tempfile.TemporaryDirectory(dir=self.folder)


@contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """While a folder is being made: if the process is killed meanwhile, `remove_abandoned` removes the folder."""
    lock = _mark(folder)
    try:
        yield
    finally:
        (folder / MARK).unlink(missing_ok=True)
        os.close(lock)


def remove_abandoned(place: Path, names: str = "*") -> None:
    """Remove the folders that killed servers left in a place; those of running servers and of other users stay."""
    for mark in place.glob(f"{names}/{MARK}"):
        with suppress(OSError):  # removed meanwhile, locked by its server, or not ours
            lock = os.open(mark, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(mark.parent)
            finally:
                os.close(lock)


def remove_abandoned_temp_folders() -> None:
    remove_abandoned(Path(tempfile.gettempdir()), f"{PREFIX}*")


def _mark(folder: Path) -> int:
    """Put the mark into a folder; it gets its name when it is locked, so that nobody takes it for one left behind."""
    new = folder / f"{MARK}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)  # closed in child processes
    with suppress(OSError):  # some file systems of networks have no locks; there nothing is removed
        fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / MARK)
    return lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
