"""Translating for clients: which model, what of a text, in which batch, and how it is put together again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread

from regard.data.detection import Detected, detect
from regard.data.hypertext import translate_html
from regard.data.languages import same_language
from regard.data.markup import Translate, Translated
from regard.data.passages import Passage, split_passage
from regard.data.pieces import well_formed
from regard.errors import UsageError
from regard.inference.alignment import Link
from regard.inference.pipelines import Partial, Translation
from regard.serve.engine import Engine
from regard.serve.problems import Busy
from regard.serve.settings import ServeSettings
from regard.serve.shelf import Exhibit, Shelf

T = TypeVar("T")
LONG = 2000  # characters
DOCUMENTS = 16  # worked through at once; more only wait for the same engine


class Desk:
    """Where requests for translations come in, whichever API they speak."""

    def __init__(self, shelf: Shelf, engine: Engine, settings: ServeSettings) -> None:
        self.shelf, self.engine, self.settings = shelf, engine, settings
        self._threads = CapacityLimiter(DOCUMENTS)  # of their own, so that short answers never wait for a thread

    def choose(self, source: str, target: str) -> tuple[Exhibit, str]:
        """The first model for a pair of languages, and its own code of the target."""
        exhibits = self.shelf.translations()
        if not any(same_language(each.source, source) for each in exhibits):
            raise UsageError(f"{source} is not supported")
        if not any(each.target(target) for each in exhibits):
            raise UsageError(f"{target} is not supported")
        for exhibit in exhibits:
            if same_language(exhibit.source, source) and (to := exhibit.target(target)):
                return exhibit, to
        raise UsageError(f"{source} to {target} is not supported")

    def target(self, exhibit: Exhibit, wanted: str) -> str:
        """The model's code of a wanted target language; a model with one target needs no wish."""
        if not wanted and len(exhibit.targets) == 1:
            return exhibit.targets[0]
        if not wanted:
            raise UsageError(f"{exhibit.id} translates into {', '.join(exhibit.targets)}; say which")
        if (to := exhibit.target(wanted)) is None:
            raise UsageError(f"{exhibit.id} translates into {', '.join(exhibit.targets)}, not into {wanted}")
        return to

    def detect(self, text: str, target: str = "") -> list[Detected]:
        """The languages a text may be in: of those that some model reads, and can turn into `target`."""
        readable = {each.source for each in self.shelf.translations() if not target or each.target(target)}
        return detect(text, among=sorted(readable) or None)

    def checked(self, texts: Sequence[str]) -> list[str]:
        """The texts, if the server takes so much."""
        limits = self.settings
        if len(texts) > limits.texts:
            raise UsageError(f"{len(texts)} texts came; at most {limits.texts} are taken at once")
        for text in texts:
            if len(text) > limits.characters:
                raise UsageError(f"the text has {len(text)} characters; at most {limits.characters} are taken")
        return [well_formed(text) for text in texts]

    async def translate(self, exhibit: Exhibit, to: str, texts: Sequence[str], **changes: Any) -> list[Spoken]:
        """Translate texts sentence by sentence, with their line breaks; all sentences go into the line as one job."""
        passages = await self._split(texts, exhibit.source)
        sentences = [sentence for passage in passages for sentence in passage.sentences]
        answers = iter(await self.engine.translate(exhibit.id, sentences, to=to, **changes))
        return [Spoken(passage, [next(answers) for _ in passage.sentences]) for passage in passages]

    async def _split(self, texts: Sequence[str], language: str) -> list[Passage]:
        def split() -> list[Passage]:
            return [split_passage(text, language) for text in texts]

        # What takes many milliseconds goes to a thread: nobody else waits, and it is not begun for who has left.
        return split() if sum(map(len, texts)) < LONG else await to_thread.run_sync(split)

    def stream(
        self, exhibit: Exhibit, to: str, text: str, *, settled: bool = False, **changes: Any
    ) -> AsyncIterator[Partial]:
        """The translation of a text as it grows; with `settled`, only what cannot change any more."""

        def begin() -> Iterator[Partial]:
            translator = self.shelf.translator(exhibit.id)
            passage, done, truncated = split_passage(text, exhibit.source), list[str](), False
            for sentence in passage.sentences:
                newest = Partial("")
                for newest in translator.stream(sentence, to=to, settled=settled, **changes):
                    yield Partial(_beginning(passage, [*done, newest.text]))
                done.append(newest.text)
                truncated |= newest.truncated
            yield Partial(passage.join(done), truncated)

        return self.engine.stream(begin)

    async def translate_html(self, exhibit: Exhibit, to: str, texts: Sequence[str]) -> tuple[list[str], bool]:
        """Translate the words of HTML; the tags stay with the words they were around."""
        return await self.aside(exhibit, to, lambda translate: translate_html(texts, translate, exhibit.source))

    async def aside(self, exhibit: Exhibit, to: str, work: Callable[[Translate], T]) -> tuple[T, bool]:
        """Work through a document in a thread, which asks for translations as it goes, until its client leaves.

        Also tells whether a limit cut any of them.
        """
        if self._threads.statistics().tasks_waiting >= self.settings.queue:
            raise Busy(f"{self.settings.queue} documents are waiting; try again later", retry_after=5)
        messenger = Messenger(self.engine, exhibit.id, to)
        try:
            return await to_thread.run_sync(work, messenger, limiter=self._threads), messenger.truncated
        finally:
            messenger.leave()


class Messenger:
    """Carries texts from another thread to the engine, and their translations back, with the words' links."""

    def __init__(self, engine: Engine, model: str, to: str) -> None:
        self.engine, self.model, self.to, self.truncated = engine, model, to, False
        self._loop = asyncio.get_running_loop()
        self._asking: asyncio.Task[Any] | None = None
        self._accepted = self._left = False

    def __call__(self, texts: list[str]) -> list[Translated]:
        return asyncio.run_coroutine_threadsafe(self._ask(texts), self._loop).result()

    def leave(self) -> None:
        """Nobody waits any more: what is being asked is dropped, and whoever asks again is interrupted."""
        self._left = True
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self, texts: list[str]) -> list[Translated]:
        if self._left:
            raise asyncio.CancelledError
        self._asking = asyncio.current_task()
        answers = await self.engine.translate(self.model, texts, to=self.to, accepted=self._accepted)
        self._accepted = True
        self.truncated |= any(each.truncated for each in answers)
        return await self.engine.run(lambda: [Translated(each.text, _links(each)) for each in answers], accepted=True)


@dataclass(frozen=True)
class Spoken:
    """The translation of a text of several sentences and lines."""

    passage: Passage
    sentences: list[Translation]

    @property
    def text(self) -> str:
        return self.passage.join([each.text for each in self.sentences])

    @property
    def truncated(self) -> bool:
        return any(each.truncated for each in self.sentences)

    def alternatives(self, count: int) -> list[str]:
        """Other translations, made of each sentence's next best ones, all different."""
        most = max((len(each.alternatives) for each in self.sentences), default=0)
        others = [
            self.passage.join([ranked(each, rank).text for each in self.sentences]) for rank in range(1, most + 1)
        ]
        return [each for each in dict.fromkeys(others) if each != self.text][:count]


def _beginning(passage: Passage, translations: list[str]) -> str:
    """The text as far as its sentences are translated."""
    count = len(translations)
    return Passage(passage.sentences[:count], [*passage.gaps[:count], ""]).join(translations)


def ranked(answer: Translation, rank: int) -> Translation:
    """The translation of a rank, 0 being the best; the last one where there are fewer."""
    return [answer, *answer.alternatives][: rank + 1][-1]


def _links(answer: Translation) -> list[Link]:
    assert answer.translator is not None
    return answer.alignment if answer.translator.alignment is not None else []
