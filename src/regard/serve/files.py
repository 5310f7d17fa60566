"""Documents that clients send to be translated: kept under names of our own, for an hour at most."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import threading
import time
from pathlib import Path, PurePath

from regard.data.documents import translate_document
from regard.data.markup import Translate
from regard.errors import DataError, UsageError
from regard.serve.problems import NotFound

FORMATS = (".txt", ".po", ".xlf", ".xliff", ".srt", ".html", ".htm")
MOST, SECONDS = 100, 3600


class TranslatedFiles:
    """A temporary folder of uploads and their translations; the oldest leave first."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="regard-files-")
        self._names: dict[str, tuple[float, str]] = {}  # by token: when it came, and what the client called it
        self._lock = threading.Lock()

    def keep(self, name: str, content: bytes) -> Path:
        """Write an upload where its translation will be; the client's name is only remembered, never a path."""
        name = PurePath(name.replace("\\", "/")).name
        suffix = PurePath(name).suffix.lower()
        if suffix not in FORMATS:
            raise UsageError(f"{suffix or name!r} files are not supported; send one of {', '.join(FORMATS)}")
        token = secrets.token_urlsafe(16)
        with self._lock:
            self._forget()
            self._names[token] = (time.monotonic(), name)
        path = Path(self._folder.name) / token / f"document{suffix}"
        path.parent.mkdir()
        path.write_bytes(content)
        return path

    def translate(self, path: Path, translate: Translate, source: str, target: str) -> str:
        """Translate a kept document; returns the token its translation is found by."""
        output = path.with_name(f"translated{path.suffix}")
        try:
            translate_document(path, output, translate, source, target, overwrite=True)
        except DataError as error:
            raise DataError(str(error).replace(f"{path.parent}/", "")) from None
        return path.parent.name

    def find(self, token: str) -> tuple[Path, str]:
        """A translated document and the name to give it."""
        with self._lock:
            self._forget()
            known = self._names.get(token)
        if known is None:
            raise NotFound("there is no such file, or no longer")
        name = PurePath(known[1])
        path = Path(self._folder.name) / token / f"translated{name.suffix.lower()}"
        if not path.is_file():
            raise NotFound("this file has not been translated")
        return path, f"{name.stem}.translated{name.suffix}"

    def _forget(self) -> None:
        now = time.monotonic()
        old = [token for token, (since, _) in self._names.items() if now - since > SECONDS]
        surplus = list(self._names)[: max(0, len(self._names) - MOST)]
        for token in {*old, *surplus}:
            del self._names[token]
            shutil.rmtree(Path(self._folder.name) / token, ignore_errors=True)
