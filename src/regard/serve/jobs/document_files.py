"""Documents that clients send to be translated: kept under names of our own, for an hour at most."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from pathlib import Path, PurePath

from regard.documents.markup import Translate
from regard.documents.translate import translate_document
from regard.errors import DataError, UsageError
from regard.serve.http.errors import NotFoundError
from regard.serve.jobs.temp_folders import ServerTempFolder

FORMATS = (".txt", ".po", ".xlf", ".xliff", ".srt", ".html", ".htm")
MOST, SECONDS = 100, 3600


class TextCollector:
    """Stands where a translator would, gives every text back as it is, and remembers them."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[str]:
        self._texts += texts
        return texts

    @property
    def text(self) -> str:
        return "\n".join(self._texts)


class DocumentFiles:
    """Uploads and their translations, in the temp_folder; the oldest leave first when they are more than `MOST`."""

    def __init__(self, temp_folder: ServerTempFolder) -> None:
        self._folder = temp_folder.folder
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
        path = self._folder / token / f"document{suffix}"
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

    def words(self, path: Path, source: str, target: str) -> str:
        """What is to be translated of a kept document, if it is one of these languages: to tell its language by."""
        heard = TextCollector()
        self.translate(path, heard, source, target)
        return heard.text

    def unchanged(self, path: Path) -> str:
        """Keep a document as its own translation."""
        shutil.copyfile(path, path.with_name(f"translated{path.suffix}"))
        return path.parent.name

    def find(self, token: str) -> tuple[Path, str]:
        """A translated document and the name to give it."""
        with self._lock:
            self._forget()
            known = self._names.get(token)
        if known is None:
            raise NotFoundError("there is no such file, or no longer")
        name = PurePath(known[1])
        path = self._folder / token / f"translated{name.suffix.lower()}"
        if not path.is_file():
            raise NotFoundError("this file has not been translated")
        return path, f"{name.stem}.translated{name.suffix}"

    def _forget(self) -> None:
        now = time.monotonic()
        old = [token for token, (since, _) in self._names.items() if now - since > SECONDS]
        surplus = list(self._names)[: max(0, len(self._names) - MOST)]
        for token in {*old, *surplus}:
            del self._names[token]
            shutil.rmtree(self._folder / token, ignore_errors=True)
