"""Translating for clients: which model, what of a text, in which batch, and how it is put together again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread

from regard.data.formats.languages import language_name, same_language
from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.unknown_words import UnknownWord, find_words
from regard.documents.html import translate_html
from regard.documents.language_id import Detected, decide, detect
from regard.documents.markup import Translate, Translated
from regard.documents.sentences import Passage, split_passage
from regard.errors import UsageError
from regard.inference.decoding.search import Search
from regard.inference.insight.word_alignment import Link
from regard.inference.pipelines.translator import Partial, Translation
from regard.serve.http.errors import Busy
from regard.serve.jobs.files import Listener
from regard.serve.models.batching import Engine
from regard.serve.models.registry import Exhibit, Shelf
from regard.serve.settings import ServeSettings

T = TypeVar("T")
LONG = 2000  # characters
AT_ONCE = 16  # sentences of a stream in a batch: a reader sees them come
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

    def sources(self, target: str) -> list[str]:
        """The languages that some model translates into the target."""
        found = [each.source for each in self.shelf.translations() if each.target(target)]
        if not found:
            raise UsageError(f"{target} is not supported")
        return list(dict.fromkeys(found))

    def detect(self, text: str, target: str = "") -> list[Detected]:
        """The languages a text may be in, best first.

        With a `target` the first is the language to translate from, or the target's own; any other is refused.
        """
        found = detect(text, [each.source for each in self.shelf.translations()])
        if not target:
            return found
        best = decide(text, sources := self.sources(target), target)
        if not any(same_language(best.language, each) for each in (*sources, target)):
            raise UsageError(
                f"the text is in {_named([best.language])}, and the models here translate into {_named([target])} only "
                f"from {_named(sources)}; if it is in one of these, give that as the source"
            )
        return [best, *(each for each in found if each.language != best.language)]

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

    async def stream(
        self,
        exhibit: Exhibit,
        to: str,
        text: str,
        *,
        settled: bool = False,
        watch: Callable[[Search], None] = lambda search: None,
        **changes: Any,
    ) -> AsyncIterator[Growing]:
        """The translation of a text as it grows; with `settled`, only what cannot change any more.

        Every sentence is computed once: the first step by step, watched by `watch`, the others in batches.
        """
        (passage,) = await self._split([text], exhibit.source)
        first, rest, answers = passage.sentences[:1], passage.sentences[1:], list[Translation]()

        def begin() -> Iterator[Partial]:
            translator = self.shelf.translator(exhibit.id)
            for sentence in first:
                yield from translator.stream(sentence, to=to, settled=settled, watch=watch, **changes)

        async for partial in self.engine.stream(begin):
            answers += [partial.whole] if partial.whole else []
            yield Growing(_beginning(passage, [partial.text]))
        while rest:
            some, rest = rest[:AT_ONCE], rest[AT_ONCE:]
            answers += await self.engine.translate(exhibit.id, some, to=to, accepted=True, **changes)
            yield Growing(_beginning(passage, [each.text for each in answers]))
        spoken = Spoken(passage, answers)
        yield Growing(spoken.text, spoken.truncated, spoken)

    async def translate_html(self, exhibit: Exhibit, to: str, texts: Sequence[str]) -> tuple[list[str], bool]:
        """Translate the words of HTML; the tags stay with the words they were around."""
        return await self.aside(exhibit, to, lambda translate: translate_html(texts, translate, exhibit.source, to))

    async def unknown_in_html(self, exhibit: Exhibit, pages: Sequence[str]) -> list[list[UnknownWord]]:
        """The words of HTML that the model does not know, where they can be found in it."""

        def find() -> list[list[UnknownWord]]:
            translator, found = self.shelf.translator(exhibit.id), list[list[UnknownWord]]()
            for page in pages:
                heard = Listener()
                translate_html([page], heard, exhibit.source)
                found.append(find_words(page, [each.word for each in translator.unknown_words(heard.text)]))
            return found

        return await self.engine.run(find, accepted=True)

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

    @property
    def unknown(self) -> list[UnknownWord]:
        """The words of the text that the model does not know."""
        found, offset = list[UnknownWord](), 0
        for gap, each in zip(self.passage.gaps, self.sentences, strict=False):
            offset += len(gap)
            found += [UnknownWord(word, offset + start, offset + end) for word, start, end in each.unknown]
            offset += len(each.source)
        return found

    def alternatives(self, count: int) -> list[str]:
        """Other translations, made of each sentence's next best ones, all different."""
        most = max((len(each.alternatives) for each in self.sentences), default=0)
        others = [self.ranked(rank) for rank in range(1, most + 1)]
        return [each for each in dict.fromkeys(others) if each != self.text][:count]

    def ranked(self, rank: int) -> str:
        """The text made of each sentence's translation of a rank, 0 being the best."""
        return self.passage.join([ranked(each, rank).text for each in self.sentences])


class Growing(NamedTuple):
    """A translation in the making; the last one is whole."""

    text: str
    truncated: bool = False
    spoken: Spoken | None = None


def _beginning(passage: Passage, translations: list[str]) -> str:
    """The text as far as its sentences are translated."""
    count = len(translations)
    return Passage(passage.sentences[:count], [*passage.gaps[:count], ""]).join(translations)


def ranked(answer: Translation, rank: int) -> Translation:
    """The translation of a rank, 0 being the best; the last one where there are fewer."""
    return [answer, *answer.alternatives][: rank + 1][-1]


def _named(codes: Sequence[str]) -> str:
    """Languages for people: English (en), German (de)."""
    return ", ".join(f"{language_name(code)} ({code})" for code in codes)


def _links(answer: Translation) -> list[Link]:
    assert answer.translator is not None
    return answer.alignment if answer.translator.alignment is not None else []
