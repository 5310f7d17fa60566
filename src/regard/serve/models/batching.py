"""One thread computes for all clients: sentences that wait at the same time are translated in one batch.

Every request is a job in one line. A job of many sentences gives way after each batch, so that a short text behind a
long one waits for a batch and not for the text. A job whose client has gone is never computed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, TypeVar

from regard.inference.pipelines.translator import Translation
from regard.serve.http.errors import Busy
from regard.serve.models.registry import Shelf

T = TypeVar("T")
TURN = 0.05  # seconds a stream may compute before others get their turn
END = object()


class Job:
    """Work in the line, and the future its client waits for."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()

    @property
    def abandoned(self) -> bool:
        return self.future.cancelled()

    def settle(self, result: Any, error: BaseException | None = None) -> None:
        """Hand the result to the client's own thread."""

        def tell() -> None:
            if self.future.done():
                return
            if error is not None:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(tell)


class Call(Job):
    """Anything that needs a model."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__()
        self.work = work


class Sentences(Job):
    """Sentences to translate in one way; `kind` tells which jobs may share a batch."""

    def __init__(self, model: str, to: str, changes: dict[str, Any], sentences: Sequence[str]) -> None:
        super().__init__()
        self.model, self.to, self.changes = model, to, changes
        self.kind = (model, to, tuple(sorted(changes.items())))
        self.waiting, self.answers = deque(sentences), list[Translation]()


class Engine:
    """The line of jobs and the thread that works through it."""

    def __init__(
        self, shelf: Shelf, *, queue: int = 256, batch: int = 64, note: Callable[[int], None] = lambda size: None
    ) -> None:
        self.shelf, self.queue, self.batch = shelf, queue, batch
        self.note = note  # told the size of every batch
        self._line: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._pace = 0.1  # seconds a job takes, a running mean; tells the turned away when to come back
        self._thread = threading.Thread(target=self._work, name="regard-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def halt(self, seconds: float) -> bool:
        """Drop what waits and stop; whether the thread has ended within so many seconds."""
        with self._changed:
            self._closing = True
            self._line.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def translate(
        self, model: str, sentences: Sequence[str], *, to: str = "", accepted: bool = False, **changes: Any
    ) -> list[Translation]:
        """Translate sentences together with whatever other clients ask of the same model in the same way.

        What goes on with an `accepted` request is never turned away.
        """
        if not sentences:
            return []
        return await self._put(Sentences(model, to, changes, sentences), bounded=not accepted)

    async def run(self, work: Callable[[], T], *, accepted: bool = False) -> T:
        """Do something with the models, in its turn."""
        return await self._put(Call(work), bounded=not accepted)

    async def stream(self, begin: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """The newest item of an iterator turn by turn: others compute between, and a reader who leaves ends it."""
        iterator = await self.run(begin)

        def turn() -> Any:
            newest, until = next(iterator, END), time.monotonic() + TURN
            while time.monotonic() < until and (later := next(iterator, END)) is not END:
                newest = later
            return newest

        while (item := await self._put(Call(turn), bounded=False)) is not END:
            yield item

    async def _put(self, job: Job, *, bounded: bool = True) -> Any:
        with self._changed:
            if self._closing:
                raise Busy("the server is shutting down", retry_after=5)
            if bounded and len(self._line) >= self.queue:
                self._line = deque(each for each in self._line if not each.abandoned)
            if bounded and len(self._line) >= self.queue:
                seconds = max(1, round(self._pace * len(self._line)))
                raise Busy(f"{self.queue} requests are waiting; try again in {seconds} s", retry_after=seconds)
            self._line.append(job)
            self._changed.notify()
        return await job.future

    # The computing thread

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began, size = time.monotonic(), 1
            if isinstance(job, Call):
                self._call(job)
            elif isinstance(job, Sentences):
                size = self._translate(job)
            self._pace += 0.1 * ((time.monotonic() - began) / size - self._pace)

    def _next(self) -> Job | None:
        with self._changed:
            while True:
                while self._line and self._line[0].abandoned:
                    self._line.popleft()
                if self._line:
                    return self._line.popleft()
                if self._closing:
                    return None
                self._changed.wait()

    def _call(self, job: Call) -> None:
        try:
            job.settle(job.work())
        except BaseException as error:
            job.settle(None, error)

    def _translate(self, first: Sentences) -> int:
        """One batch: the first job's sentences and those of others of its kind, one from each in turn."""
        with self._changed:
            alike = [each for each in self._line if isinstance(each, Sentences) and each.kind == first.kind]
        jobs = [first, *(each for each in alike if not each.abandoned)]
        taken: list[tuple[Sentences, str]] = []
        while len(taken) < self.batch and (hungry := [job for job in jobs if job.waiting]):
            taken += [(job, job.waiting.popleft()) for job in hungry[: self.batch - len(taken)]]
        self.note(len(taken))
        self._answer(first, taken)
        sharing = {id(job): job for job, _ in taken}.values()
        done = [job for job in sharing if not job.waiting]
        with self._changed:
            left = [job for job in self._line if job not in done]
            self._line = deque(left if first in done or first.future.done() else [*left, first])
        for job in done:
            job.settle(job.answers)
        return len(sharing)

    def _answer(self, first: Sentences, taken: list[tuple[Sentences, str]]) -> None:
        """Translate a batch; where it fails, each sentence by itself, so that one bad sentence spoils no other."""
        try:
            translator = self.shelf.translator(first.model)
        except BaseException as error:
            for job, _ in taken:
                job.waiting.clear()
                job.settle(None, error)
            return
        try:
            answers = translator.translate([sentence for _, sentence in taken], to=first.to, **first.changes)
            for (job, _), answer in zip(taken, answers, strict=True):
                answer.unknown  # noqa: B018 - looked for now, since it may need the model
                job.answers.append(answer)
        except Exception:
            for job, sentence in taken:
                try:
                    job.answers.append(translator.translate(sentence, to=first.to, **first.changes))
                except BaseException as error:
                    job.waiting.clear()
                    job.settle(None, error)
