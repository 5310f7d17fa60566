"""Folders with uploads and unfinished work, and documents kept in them for at most an hour.

They are removed when the server ends or, if it was killed, by the next server.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from regard.documents.markup import Translate
from regard.documents.translate import SUFFIXES, TextCollector, translate_document
from regard.errors import DataError, UsageError
from regard.serve.http.responses import NotFoundError

PREFIX = "regard-spool-"
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


MAX_FILES, MAX_AGE = 100, 3600  # MAX_AGE in seconds


class TranslatedFile(NamedTuple):
    """The token of a translated document, and how many translations it had and kept, and how many are new."""

    token: str
    kept: int
    new: int


class DocumentFiles:
    """Uploads and their translations; beyond `MAX_FILES` the oldest are removed."""

    def __init__(self, temp_folder: ServerTempFolder) -> None:
        self._folder = temp_folder.folder
        self._names: dict[str, tuple[float, str]] = {}  # by token: time of the upload, and the client's file name
        self._lock = threading.Lock()

    def save(self, name: str, content: bytes) -> Path:
        """Write an upload to the folder of a new token; the client's file name never becomes a path."""
        name = PurePath(name.replace("\\", "/")).name
        suffix = PurePath(name).suffix.lower()
        if suffix not in SUFFIXES:
            raise UsageError(f"{suffix or name!r} files are not supported; send one of {', '.join(SUFFIXES)}")
        token = secrets.token_urlsafe(16)
        with self._lock:
            self._remove_expired()
            self._names[token] = (time.monotonic(), name)
        path = self._folder / token / f"document{suffix}"
        path.parent.mkdir()
        path.write_bytes(content)
        return path

    def translate(self, path: Path, translate: Translate, source: str, target: str, *, replace: bool) -> TranslatedFile:
        """Translate a saved document; `replace` also what is translated in it."""
        output = path.with_name(f"translated{path.suffix}")
        try:
            report = translate_document(path, output, translate, source, target, overwrite=replace)
        except DataError as error:
            raise DataError(str(error).replace(f"{path.parent}/", "")) from None
        return TranslatedFile(path.parent.name, report.kept.total(), report.translated)

    def extract_text(self, path: Path, source: str, target: str) -> str:
        """The translatable text of a saved document between these languages, for language detection."""
        collector = TextCollector()
        self.translate(path, collector, source, target, replace=True)
        return collector.text

    def copy_unchanged(self, path: Path) -> str:
        """Use a saved document as its own translation; returns the token."""
        shutil.copyfile(path, path.with_name(f"translated{path.suffix}"))
        return path.parent.name

    def find(self, token: str) -> tuple[Path, str]:
        """The path of a translated document, and the file name for the client."""
        with self._lock:
            self._remove_expired()
            known = self._names.get(token)
        if known is None:
            raise NotFoundError("there is no such file; translated files are kept for an hour")
        name = PurePath(known[1])
        path = self._folder / token / f"translated{name.suffix.lower()}"
        if not path.is_file():
            raise NotFoundError("this file has not been translated")
        return path, f"{name.stem}.translated{name.suffix}"

    def _remove_expired(self) -> None:
        now = time.monotonic()
        old = [token for token, (since, _) in self._names.items() if now - since > MAX_AGE]
        surplus = list(self._names)[: max(0, len(self._names) - MAX_FILES)]
        for token in {*old, *surplus}:
            del self._names[token]
            shutil.rmtree(self._folder / token, ignore_errors=True)
