"""Folders with uploads and unfinished work.

They are removed when the server ends or, if it was killed, by the next server.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from regard.serve.http.responses import StorageFullError

PREFIX = "regard-spool-"
RESERVE = 1 << 30  # bytes of the disk that uploads and trainings leave free
LOCK_FILE = ".in-use"  # locked while its process lives; the system releases the lock however the process ends


class ServerTempFolder:
    """The temporary folder of a server, removed with it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.close = weakref.finalize(self, _remove, self.folder, _lock(self.folder))


@contextmanager
def removed_if_killed(folder: Path) -> Iterator[None]:
    """Mark a folder as unfinished: if the process is killed inside the block, `remove_abandoned` removes the folder."""
    lock = _lock(folder)
    try:
        yield
    finally:
        (folder / LOCK_FILE).unlink(missing_ok=True)
        os.close(lock)


def remove_abandoned(parent: Path, pattern: str = "*") -> None:
    """Remove the subfolders that killed servers left; those of running servers and of other users stay."""
    for lock_file in parent.glob(f"{pattern}/{LOCK_FILE}"):
        with suppress(OSError):  # already removed, locked by its server, or owned by another user
            lock = os.open(lock_file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    shutil.rmtree(lock_file.parent)
            finally:
                os.close(lock)


def remove_abandoned_temp_folders() -> None:
    remove_abandoned(Path(tempfile.gettempdir()), f"{PREFIX}*")


def _lock(folder: Path) -> int:
    """Create the lock file of a folder; it is renamed after it is locked, so that it never looks abandoned."""
    new = folder / f"{LOCK_FILE}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)  # not inherited by child processes
    with suppress(OSError):  # some network file systems have no locks; there nothing is ever removed
        fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(folder / LOCK_FILE)
    return lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def check_space(folder: Path, needed: int = 0) -> None:
    """Refuse what would leave the disk of a folder nearly full: a training in progress saves its checkpoints there."""
    place = next(each for each in (folder, *folder.absolute().parents) if each.exists())  # it may not be made yet
    free = shutil.disk_usage(place).free
    if free - needed < RESERVE:
        raise StorageFullError(
            f"the server's disk has {free / 2**30:.1f} GiB left, of which {RESERVE / 2**30:.1f} are kept free; its "
            "operator has to make room"
        )
