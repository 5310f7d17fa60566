"""Documents that clients send: kept for an hour, translated as jobs, and parsed in processes of their own.

A job goes on until it is done, its client has gone, or the server ends. Each has a token, which is its address.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePath
from typing import IO, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from regard.data.formats.languages import same_language
from regard.documents.language_id import Detected
from regard.documents.limits import Limits
from regard.documents.translate import SUFFIXES
from regard.errors import DataError, UsageError
from regard.families.translation.glossary import NO_TERMS, Glossary
from regard.serve.http.responses import BusyError, HTTPError, NotFoundError, StorageFullError, is_done
from regard.serve.jobs.document_process import KNOWN, MISSING, read_lines
from regard.serve.jobs.temp_folders import ServerTempFolder, check_space
from regard.serve.models.registry import Route
from regard.serve.models.translation_service import DocumentTranslator, TranslationService
from regard.serve.settings import ServeSettings

AUTO = "auto"  # as source language: detect it
MAX_KEPT, MAX_AGE = 100, 3600  # documents, and seconds after their last use
RUNNING = 16  # documents translated at once, by turns
PROCESSES = 2  # documents parsed at once
BATCH = 64  # sentences handed to the queue at once
SAMPLE = 100_000  # characters by which the language is detected
COMMAND = (sys.executable, "-P", "-m", "regard.serve.jobs.document_process")


class DocumentFailedError(HTTPError):
    """A document could not be rewritten by a fault of ours; the log has the traceback."""

    status = 500


class DocumentProcesses:
    """Processes that rewrite documents, started when they are needed; one that is not waited for is killed."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._free = asyncio.Semaphore(PROCESSES)
        self._idle: list[Process] = []

    async def rewrite(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out a task of `document_process`; returns what the process said."""
        async with self._free:
            process = (
                self._idle.pop()
                if self._idle
                else await asyncio.create_subprocess_exec(*COMMAND, stdin=PIPE, stdout=PIPE)
            )
            said: dict[str, Any] = {"last": True}
            try:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(f"{json.dumps({**task, 'seconds': self.seconds})}\n".encode())
                if line := await process.stdout.readline():
                    said = json.loads(line)
            except BaseException:  # such as a client that has gone
                with suppress(ProcessLookupError):
                    process.kill()
                process._transport.close()  # type: ignore[attr-defined]  # at once: the loop may end before the process
                await process.wait()
                raise
            if said.pop("last"):
                await process.communicate()  # it ends by itself
            else:
                self._idle.append(process)
        if not said:
            spent = process.returncode == -signal.SIGPROF
            what = f"takes longer than {self.seconds:g} s to read" if spent else "needs too much memory"
            raise DataError(f"{task['name']}: {what}; send it in parts")
        if "error" in said:
            raise DataError(said["error"])
        if "failed" in said:
            raise DocumentFailedError(f"{task['name']} cannot be translated; the server's log says why")
        return said

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().communicate()  # which closes the pipes, and so ends it


@dataclass
class Document:
    """A document that a client has sent, and what is known of its translation."""

    path: Path
    name: str  # the client's name of the file, never a path here
    size: int
    used: float = field(default_factory=time.monotonic)
    detected: Detected | None = None
    route: Route = ()
    sentences: int = 0  # translated so far
    of: int | None = None  # None: not known yet
    unchanged: bool = False  # it was in the target language already
    truncated: bool = False
    counts: dict[str, Any] = field(default_factory=dict)  # of segments: kept, new and skipped
    task: asyncio.Task[None] | None = None

    @property
    def token(self) -> str:
        return self.path.parent.name

    @property
    def output(self) -> Path:
        return self.path.with_name(f"translated{self.path.suffix}")

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    def cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class DocumentJobs:
    """The documents of a server, by their tokens."""

    def __init__(self, service: TranslationService, temp_folder: ServerTempFolder, settings: ServeSettings) -> None:
        self.service, self.folder, self.settings = service, temp_folder.folder, settings
        self.limits = Limits(settings.document, settings.document // 8)
        self._documents: dict[str, Document] = {}
        self._processes = DocumentProcesses(settings.seconds)
        self._turns = asyncio.Semaphore(RUNNING)

    async def close(self) -> None:
        tasks = [each.task for each in self._documents.values() if each.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._processes.close()

    async def save(self, name: str, file: IO[bytes]) -> Document:
        """Keep an upload under a new token; the client's file name never becomes a path."""
        name = PurePath(name.replace("\\", "/")).name
        suffix = PurePath(name).suffix.lower()
        if suffix not in SUFFIXES:
            raise UsageError(f"{suffix or name!r} files are not supported; send one of {', '.join(SUFFIXES)}")
        size = file.seek(0, os.SEEK_END)
        self._make_room(size)
        document = Document(self.folder / secrets.token_urlsafe(16) / f"document{suffix}", name, size)
        document.path.parent.mkdir()
        self._documents[document.token] = document
        try:
            await run_in_threadpool(_copy, file, document.path)
        except BaseException:
            self._remove(document)
            raise
        return document

    def start(
        self,
        document: Document,
        source: str,
        target: str,
        *,
        model: str = "",
        glossary: Glossary = NO_TERMS,
        replace: bool = False,
    ) -> asyncio.Task[None]:
        """Translate a document, by the model named or by those for its languages; existing translations are kept
        unless they are to be replaced."""
        task = asyncio.create_task(self._translate(document, source, target, model, glossary, replace))
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # whoever asks later is told
        document.task = task
        return task

    def find(self, token: str) -> Document:
        document = self._documents.get(token)
        if document is None or not document.path.parent.is_dir():
            raise NotFoundError("there is no such file; translated files are kept for an hour")
        document.used = time.monotonic()
        return document

    async def translation(self, request: Request, token: str) -> tuple[Path, str]:
        """The path of a translated document, when it is translated, and its file name for the client."""
        document = self.find(token)
        if document.task is None:
            raise NotFoundError("this file has not been translated")
        await is_done(request, document.task, seconds=None)
        if document.task.cancelled():
            raise NotFoundError("the translation of this file was stopped")
        document.task.result()
        name = PurePath(document.name)
        return document.output, f"{name.stem}.translated{name.suffix}"

    def remove(self, token: str) -> None:
        """Stop a job and remove its document."""
        self._remove(self.find(token))

    def _remove(self, document: Document) -> None:
        document.cancel()
        self._documents.pop(document.token, None)
        shutil.rmtree(document.path.parent, ignore_errors=True)

    def _make_room(self, size: int) -> None:
        """Remove what is old, and refuse one more document than there is room for."""
        now = time.monotonic()
        ended = sorted((each for each in self._documents.values() if not each.running), key=lambda each: each.used)
        for document in ended:
            kept = sum(2 * each.size for each in self._documents.values()) + 2 * size
            full = len(self._documents) >= MAX_KEPT or kept > self.settings.uploads
            if full or now - document.used > MAX_AGE:
                self._remove(document)
        if len(self._documents) >= MAX_KEPT:
            raise BusyError(f"{MAX_KEPT} documents are being translated; try again later", retry_after=30)
        if sum(2 * each.size for each in self._documents.values()) + 2 * size > self.settings.uploads:
            raise StorageFullError("the documents kept here leave no room for this one; try again later")
        check_space(self.folder, 2 * size)

    # A job

    async def _translate(
        self, document: Document, source: str, target: str, model: str, glossary: Glossary, replace: bool
    ) -> None:
        async with self._turns:
            if source == AUTO and not model:
                document.detected = await self._detect(document, target)
                source = document.detected.language
                if same_language(source, target):
                    await run_in_threadpool(shutil.copyfile, document.path, document.output)
                    document.unchanged = True
                    return
            document.route = route = self._route(model, source, target)
            translate = DocumentTranslator(self.service, route, glossary)
            reads, to = route[0][0].source, route[-1][1]
            while missing := (said := await self._rewrite(document, reads, to, replace=replace)).pop("missing"):
                document.of = document.sentences + missing
                await self._answer(document, translate)
            document.of, document.counts, document.truncated = document.sentences, said, translate.truncated

    async def _rewrite(self, document: Document, source: str, target: str, *, replace: bool) -> dict[str, Any]:
        task = {"path": str(document.path), "name": document.name, "limits": self.limits}
        return await self._processes.rewrite({**task, "source": source, "target": target, "replace": replace})

    async def _answer(self, document: Document, translate: DocumentTranslator) -> None:
        """Translate what is missing."""
        with document.path.with_name(KNOWN).open("a", encoding="ascii") as known:
            for batch in _batches(read_lines(document.path.with_name(MISSING))):
                answers = await translate([text for text, *_ in batch], {text for text, _, marked in batch if marked})
                known.writelines(
                    f"{json.dumps((text, answer.text, answer.links))}\n"
                    for (text, *_), answer in zip(batch, answers, strict=True)
                )
                document.sentences += sum(count for _, count, _ in batch)

    async def _detect(self, document: Document, target: str) -> Detected:
        """The language of a document, among those that some model translates into the target."""
        sources = self.service.languages.source_languages(target)
        for source in sources:
            try:
                await self._rewrite(document, source, target, replace=True)
                break
            except DataError:  # such as an XLIFF file that declares another source language
                if source == sources[-1]:
                    raise
        text, length = list[str](), 0
        for missing, *_ in read_lines(document.path.with_name(MISSING)):
            text.append(missing)
            length += len(missing)
            if length > SAMPLE:
                break
        found = await run_in_threadpool(self.service.languages.detect_language, "\n".join(text), target)
        return found[0]

    def _route(self, model: str, source: str, target: str) -> Route:
        languages = self.service.languages
        if not model:
            return languages.find_route(source, target)
        info = self.service.registry.find(model)
        return [(info, languages.target_language(info, target))]


def _batches(rows: Iterable[tuple[str, int, bool]]) -> Iterator[list[tuple[str, int, bool]]]:
    iterator = iter(rows)
    while batch := list(islice(iterator, BATCH)):
        yield batch


def _copy(file: IO[bytes], path: Path) -> None:
    file.seek(0)
    with path.open("wb") as out:
        shutil.copyfileobj(file, out, 1 << 20)
