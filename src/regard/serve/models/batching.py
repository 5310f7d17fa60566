"""One thread runs the models for all clients; sentences that wait at the same time are translated in one batch.

Every request is an entry of a queue. An entry of many sentences goes to the end of the queue after each batch, so that
a short text behind a long one waits for one batch only. Documents have a queue of their own, and the two take turns: a
short text waits for one batch of one document, however many documents there are, and documents go on however many texts
there are. An entry whose client has disconnected is not computed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from regard.config import Config
from regard.families.translation.glossary import NO_TERMS, Glossary
from regard.families.translation.translation import Translation
from regard.search.settings import SearchSettings
from regard.serve.http.responses import BusyError
from regard.serve.models.registry import ModelRegistry


class AskedSettings(Config):
    """The values of a model's search settings that a request replaces; None leaves the model's own.

    Requests with equal values may share a batch, so all values can be hashed.
    """

    beam: int | None = None
    n_best: int | None = None
    sample: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None

    def applied_to(self, settings: SearchSettings) -> SearchSettings:
        """The settings with these values, which are checked there."""
        return settings.replace(**self.model_dump(exclude_none=True))


AS_THE_MODEL = AskedSettings()


T = TypeVar("T")
STREAM_SLICE = 0.05  # seconds that a stream computes before it goes back to the end of the queue
END = object()


class QueueEntry:
    """Work in the queue, and the future that its client awaits."""

    def __init__(self, *, by_turns: bool = False) -> None:
        self.by_turns = by_turns  # in the queue of documents
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    @property
    def abandoned(self) -> bool:
        return self.future.cancelled()

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        """Set the future's result or error, in the client's event loop."""

        def set_future() -> None:
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(set_future)


class FunctionCall(QueueEntry):
    """Any function that uses a model."""

    def __init__(self, work: Callable[[], Any], *, by_turns: bool = False) -> None:
        super().__init__(by_turns=by_turns)
        self.work = work


class SentencesToTranslate(QueueEntry):
    """Sentences to translate with the same settings; entries with equal `batch_key` may share a batch."""

    def __init__(
        self,
        model: str,
        to: str,
        asked: AskedSettings,
        glossary: Glossary,
        sentences: Sequence[str],
        *,
        by_turns: bool = False,
    ) -> None:
        super().__init__(by_turns=by_turns)
        self.model, self.to, self.asked, self.glossary = model, to, asked, glossary
        self.batch_key = (model, to, asked, glossary)
        self.remaining, self.answers = deque(sentences), list[Translation]()


class Engine:
    """The queue and the thread that processes it; `on_batch` is called with the size of every batch."""

    def __init__(
        self,
        registry: ModelRegistry,
        *,
        queue_limit: int = 256,
        batch_size: int = 64,
        on_batch: Callable[[int], None] = lambda size: None,
    ) -> None:
        self.registry, self.queue_limit, self.batch_size, self.on_batch = registry, queue_limit, batch_size, on_batch
        self._queue, self._documents = deque[QueueEntry](), deque[QueueEntry]()
        self._document_next = False
        self._changed = threading.Condition()
        self._closing = False
        self._seconds_per_entry = 0.1  # a running mean, from which Retry-After is computed
        self._thread = threading.Thread(target=self._work, name="regard-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float | None = None) -> None:
        """Finish all accepted requests, then stop; waits for that `seconds` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)

    def halt(self, seconds: float) -> bool:
        """Clear the queue and stop; returns whether the thread ended within `seconds`."""
        with self._changed:
            self._closing = True
            self._queue.clear()
            self._documents.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._queue) + len(self._documents)

    async def translate(
        self,
        model: str,
        sentences: Sequence[str],
        *,
        to: str = "",
        accepted: bool = False,
        asked: AskedSettings = AS_THE_MODEL,
        glossary: Glossary = NO_TERMS,
        by_turns: bool = False,
    ) -> list[Translation]:
        """Translate sentences, in batches shared with other requests to the same model with the same settings.

        Pass `accepted` for later parts of a request that was accepted: they are not refused when the queue is full.
        Pass `by_turns` for documents.
        """
        if not sentences:
            return []
        entry = SentencesToTranslate(model, to, asked, glossary, sentences, by_turns=by_turns)
        return await self._put(entry, bounded=not accepted)

    async def run(self, work: Callable[[], T], *, accepted: bool = False, by_turns: bool = False) -> T:
        """Call a function in the computing thread."""
        return await self._put(FunctionCall(work, by_turns=by_turns), bounded=not accepted)

    async def stream(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Run an iterator in time slices and yield the newest item of each slice.

        Other entries are computed between the slices. The iterator is not advanced after its reader stops.
        """
        iterator = await self.run(begin)

        def run_slice() -> Any:
            newest, until = next(iterator, END), time.monotonic() + STREAM_SLICE
            while time.monotonic() < until and (later := next(iterator, END)) is not END:
                newest = later
            return newest

        while (item := await self._put(FunctionCall(run_slice), bounded=False)) is not END:
            yield item

    async def _put(self, entry: QueueEntry, *, bounded: bool = True) -> Any:
        with self._changed:
            if self._closing:
                raise BusyError("the server is shutting down", retry_after=5)
            if bounded and len(self._queue) >= self.queue_limit:
                self._queue = deque(each for each in self._queue if not each.abandoned)
            if bounded and len(self._queue) >= self.queue_limit:
                seconds = max(1, round(self._seconds_per_entry * len(self._queue)))
                message = f"{self.queue_limit} requests are waiting; try again in {seconds} s"
                raise BusyError(message, retry_after=seconds)
            (self._documents if entry.by_turns else self._queue).append(entry)
            self._changed.notify()
        return await entry.future

    # The computing thread

    def _work(self) -> None:
        while (entry := self._next()) is not None:
            began, size = time.monotonic(), 1
            if isinstance(entry, FunctionCall):
                try:
                    entry.resolve(entry.work())
                except BaseException as error:
                    entry.resolve(None, error)
            elif isinstance(entry, SentencesToTranslate):
                size = self._translate_batch(entry)
            self._seconds_per_entry += 0.1 * ((time.monotonic() - began) / size - self._seconds_per_entry)

    def _next(self) -> QueueEntry | None:
        with self._changed:
            while True:
                for queue in (self._queue, self._documents):
                    while queue and queue[0].abandoned:
                        queue.popleft()
                if self._queue or self._documents:
                    document = bool(self._documents) and (self._document_next or not self._queue)
                    self._document_next = not document
                    return (self._documents if document else self._queue).popleft()
                if self._closing:
                    return None
                self._changed.wait()

    def _translate_batch(self, first: SentencesToTranslate) -> int:
        """Translate one batch, filled round-robin from `first` and entries with its key; returns how many shared it."""
        with self._changed:
            queued = [each for each in (*self._queue, *self._documents) if isinstance(each, SentencesToTranslate)]
        others = [
            each
            for each in queued
            if each.batch_key == first.batch_key and each.by_turns == first.by_turns and not each.abandoned
        ]
        entries, batch = [first, *others], list[tuple[SentencesToTranslate, str]]()
        while len(batch) < self.batch_size and (unfinished := [entry for entry in entries if entry.remaining]):
            batch += [(entry, entry.remaining.popleft()) for entry in unfinished[: self.batch_size - len(batch)]]
        self.on_batch(len(batch))
        self._translate(first, batch)
        sharing = {id(entry): entry for entry, _ in batch}.values()
        done = [entry for entry in sharing if not entry.remaining]
        with self._changed:
            self._queue = deque(entry for entry in self._queue if entry not in done)
            self._documents = deque(entry for entry in self._documents if entry not in done)
            if first not in done and not first.future.done():
                (self._documents if first.by_turns else self._queue).append(first)
        for entry in done:
            entry.resolve(entry.answers)
        return len(sharing)

    def _translate(self, first: SentencesToTranslate, batch: list[tuple[SentencesToTranslate, str]]) -> None:
        """Translate a batch. If it fails, translate each sentence alone, so that only the bad ones get an error."""
        try:
            translator = self.registry.translator(first.model)
        except BaseException as error:
            for entry, _ in batch:
                entry.remaining.clear()
                entry.resolve(None, error)
            return
        try:
            settings = first.asked.applied_to(translator.settings)
            sentences = [sentence for _, sentence in batch]
            answers = translator.translate(sentences, to=first.to, glossary=first.glossary, settings=settings)
            for (entry, _), answer in zip(batch, answers, strict=True):
                answer.unknown  # noqa: B018 - computed here, because it may need the model
                entry.answers.append(answer)
        except Exception:
            for entry, sentence in batch:
                try:
                    settings = first.asked.applied_to(translator.settings)
                    answer = translator.translate(sentence, to=first.to, glossary=first.glossary, settings=settings)
                    entry.answers.append(answer)
                except BaseException as error:
                    entry.remaining.clear()
                    entry.resolve(None, error)
