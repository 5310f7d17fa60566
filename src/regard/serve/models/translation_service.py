"""Translation for every API: find the model, split texts into sentences, translate in batches, join the results."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import compress
from pathlib import Path
from typing import NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.unknown_words import UnknownWord, find_words
from regard.documents.html import translate_html
from regard.documents.known_answers import KnownAnswers
from regard.documents.markup import Translated
from regard.documents.memory import MOST_MATCHES, KeptAnswers, MemoryMatch, TranslationMemory
from regard.documents.sentences import SplitText, split_text
from regard.documents.translate import TextCollector
from regard.errors import DataError, UsageError
from regard.families.translation.glossary import NO_TERMS, Glossary
from regard.families.translation.memory import said_again
from regard.families.translation.quality import Assessment
from regard.families.translation.translation import Partial, Translation, alignments, joined
from regard.look.word_alignment import Link, compose_links
from regard.search.search import Search
from regard.serve.http.responses import wait_for_result
from regard.serve.models.batching import AS_THE_MODEL, AskedSettings, Engine
from regard.serve.models.registry import LanguageRoutes, ModelInfo, ModelRegistry, Route
from regard.serve.settings import ServeSettings


@dataclass(frozen=True)
class TranslatedText:
    """The translation of a text of several sentences and lines; `way` is the one into a pivot language before it."""

    split: SplitText
    sentences: list[Translation]
    way: TranslatedText | None = None

    @property
    def text(self) -> str:
        return self.split.join([each.text for each in self.sentences])

    @property
    def truncated(self) -> bool:
        return any(each.truncated for each in self.sentences) or (self.way is not None and self.way.truncated)

    @property
    def unknown(self) -> list[UnknownWord]:
        """The words of the text that the model does not know."""
        if self.way is not None:
            return self.way.unknown
        found, offset = list[UnknownWord](), 0
        for gap, each in zip(self.split.gaps, self.sentences, strict=False):
            offset += len(gap)
            found += [UnknownWord(word, offset + start, offset + end) for word, start, end in each.unknown]
            offset += len(each.source)
        return found

    @property
    def assessment(self) -> Assessment:
        """The estimated quality of the whole text; through a pivot language, the product of both qualities."""
        if not self.sentences:
            return Assessment(1.0, [], [])
        own = joined(self.sentences).assessment
        if self.way is None:
            return own
        before = self.way.assessment
        return replace(
            own, quality=own.quality * before.quality, flags=list(dict.fromkeys([*before.flags, *own.flags]))
        )

    def alternatives(self, count: int) -> list[str]:
        """Up to `count` other translations, all different, made of each sentence's next best ones."""
        most = max((len(each.alternatives) for each in self.sentences), default=0)
        others = [self.ranked(rank) for rank in range(1, most + 1)]
        return [each for each in dict.fromkeys(others) if each != self.text][:count]

    def ranked(self, rank: int) -> str:
        """The text made of each sentence's translation of this rank; rank 0 is the best."""
        return self.split.join([ranked(each, rank).text for each in self.sentences])


class PartialText(NamedTuple):
    """A translation so far; the last one of a stream carries the complete result in `final`."""

    text: str
    truncated: bool = False
    final: TranslatedText | None = None


def text_so_far(split: SplitText, translations: list[str]) -> str:
    """The text up to the last translated sentence."""
    count = len(translations)
    return SplitText(split.sentences[:count], [*split.gaps[:count], ""]).join(translations)


def ranked(answer: Translation, rank: int) -> Translation:
    """The translation of this rank; rank 0 is the best. If there are fewer, the last one."""
    return [answer, *answer.alternatives][: rank + 1][-1]


T = TypeVar("T")
SPLIT_IN_THREAD = 2000  # characters from which splitting runs in a thread
STREAM_BATCH = 16  # sentences per batch of a stream; small, so that readers see progress
SPLITTING_THREADS = 4


class TranslationService:
    """Translates for all routes, whichever API the client uses."""

    def __init__(self, registry: ModelRegistry, engine: Engine, settings: ServeSettings) -> None:
        self.registry, self.engine, self.settings = registry, engine, settings
        self.languages, self.memory = LanguageRoutes(registry), ServerMemory(registry, settings)
        # Long texts are split in threads of their own, so that no other request waits for one.
        self._splitting = CapacityLimiter(SPLITTING_THREADS)

    async def compute(self, request: Request, work: Callable[[], T]) -> T:
        """Call a function in the computing thread, for a client that waits for the result."""
        return await wait_for_result(request, self.engine.run(work), seconds=self.settings.seconds)

    def check_limits(self, texts: Sequence[str]) -> list[str]:
        """The texts in well-formed Unicode; raises an error if they exceed the server's limits."""
        limits = self.settings
        if len(texts) > limits.texts:
            raise UsageError(f"the request has {len(texts)} texts; the limit is {limits.texts}")
        for text in texts:
            if len(text) > limits.characters:
                raise UsageError(f"the text has {len(text)} characters; the limit is {limits.characters}")
        return [well_formed(text) for text in texts]

    async def translate(
        self,
        info: ModelInfo,
        to: str,
        texts: Sequence[str],
        asked: AskedSettings = AS_THE_MODEL,
        glossary: Glossary = NO_TERMS,
    ) -> list[TranslatedText]:
        """Translate texts sentence by sentence, keeping line breaks; all sentences enter the queue as one entry."""
        splits = await self._split(texts, info.source)
        sentences = [sentence for split in splits for sentence in split.sentences]
        found = await self.engine.translate(info.id, sentences, to=to, asked=asked, glossary=glossary)
        answers = iter(self.memory.applied(info, to, found, asked, glossary))
        return [TranslatedText(split, [next(answers) for _ in split.sentences]) for split in splits]

    async def translate_along(
        self, route: Route, texts: Sequence[str], asked: AskedSettings = AS_THE_MODEL, glossary: Glossary = NO_TERMS
    ) -> list[TranslatedText]:
        """Translate texts by the models of a route; `asked` is for the last of them."""
        _check_terms(route, glossary)
        *before, (last, to) = route
        ways: list[TranslatedText | None] = [None] * len(texts)
        for info, pivot in before:
            answers = await self.translate(info, pivot, texts)
            ways, texts = [*answers], [each.text for each in answers]
        answers = await self.translate(last, to, texts, asked, glossary)
        return [replace(each, way=way) for each, way in zip(answers, ways, strict=True)]

    async def assess(self, answers: Sequence[TranslatedText]) -> list[Assessment]:
        """The estimated quality of translations; one model made all of them."""
        return await self.engine.run(lambda: [each.assessment for each in answers], accepted=True)

    async def _split(self, texts: Sequence[str], language: str) -> list[SplitText]:
        def split() -> list[SplitText]:
            return [split_text(text, language) for text in texts]

        # Splitting long texts takes many milliseconds. In a thread it does not block other requests.
        if sum(map(len, texts)) < SPLIT_IN_THREAD:
            return split()
        return await to_thread.run_sync(split, limiter=self._splitting)

    async def stream(
        self,
        info: ModelInfo,
        to: str,
        text: str,
        asked: AskedSettings = AS_THE_MODEL,
        *,
        glossary: Glossary = NO_TERMS,
        settled: bool = False,
        watch: Callable[[Search], None] = lambda search: None,
    ) -> AsyncIterator[PartialText]:
        """The growing translation of a text; with `settled`, only the part that cannot change any more.

        Every sentence is translated once: the first step by step, with its search passed to `watch`, the others in
        batches.
        """
        (split,) = await self._split([text], info.source)
        first, rest, answers = split.sentences[:1], split.sentences[1:], list[Translation]()

        def begin() -> Iterator[Partial]:
            translator = self.registry.translator(info.id)
            for sentence in first:
                settings = asked.applied_to(translator.settings)
                yield from translator.stream(
                    sentence, to=to, glossary=glossary, settled=settled, watch=watch, settings=settings
                )

        async for partial in self.engine.stream(begin):
            answers += [partial.whole] if partial.whole else []
            yield PartialText(text_so_far(split, [partial.text]))
        while rest:
            batch, rest = rest[:STREAM_BATCH], rest[STREAM_BATCH:]
            answers += await self.engine.translate(info.id, batch, to=to, accepted=True, asked=asked, glossary=glossary)
            yield PartialText(text_so_far(split, [each.text for each in answers]))
        final = TranslatedText(split, self.memory.applied(info, to, answers, asked, glossary))
        yield PartialText(final.text, final.truncated, final)

    async def translate_html(
        self, route: Route, texts: Sequence[str], glossary: Glossary = NO_TERMS
    ) -> tuple[list[str], bool]:
        """Translate the text of HTML pages; tags stay around the words they enclosed. Also whether a limit cut any."""
        translate, known = DocumentTranslator(self, route, glossary, by_turns=False), dict[str, Translated]()
        while True:
            answers = KnownAnswers(known)
            asked = texts, answers, route[0][0].source, route[-1][1]
            pages = await to_thread.run_sync(translate_html, *asked, limiter=self._splitting)
            if not answers.missing:
                return pages, translate.truncated
            missing = list(answers.missing)
            known |= zip(missing, await translate(missing, answers.marked), strict=True)

    async def unknown_in_html(self, info: ModelInfo, pages: Sequence[str]) -> list[list[UnknownWord]]:
        """The words of each HTML page that the model does not know, with their positions in the page."""

        def find() -> list[list[UnknownWord]]:
            translator, found = self.registry.translator(info.id), list[list[UnknownWord]]()
            for page in pages:
                words = [each.word for each in translator.unknown_words(html_text(page, info.source))]
                found.append(find_words(page, words))
            return found

        return await self.engine.run(find, accepted=True)


class DocumentTranslator:
    """Translates the texts of a document, with word alignments to put markup back by."""

    def __init__(self, service: TranslationService, route: Route, glossary: Glossary, *, by_turns: bool = True) -> None:
        """With `by_turns` all documents together take turns with short requests, batch by batch."""
        _check_terms(route, glossary)
        self.service, self.engine = service, service.engine
        self.route, self.glossary, self.by_turns, self.truncated = route, glossary, by_turns, False
        self._accepted = by_turns

    async def __call__(self, texts: Sequence[str], marked: Container[str]) -> list[Translated]:
        """The translations of texts, with word links for those that are `marked` because they have markup."""
        linked, hops = [text in marked for text in texts], list[list[Translation]]()
        for info, to in self.route:
            found = await self.engine.translate(
                info.id, texts, to=to, accepted=self._accepted, glossary=self.glossary, by_turns=self.by_turns
            )
            hops.append(self.service.memory.applied(info, to, found, glossary=self.glossary))
            self._accepted, texts = True, [each.text for each in hops[-1]]
        self.truncated |= any(each.truncated for answers in hops for each in answers)
        ways = list(zip(*hops, strict=True))
        links: Iterator[list[Link]] = iter(())
        if any(linked):
            chosen = list(compress(ways, linked))
            links = iter(await self.engine.run(lambda: _links(chosen), accepted=True, by_turns=self.by_turns))
        return [Translated(way[-1].text, next(links) if link else ()) for way, link in zip(ways, linked, strict=True)]


def html_text(page: str, language: str) -> str:
    """The text of an HTML page that is translated from a language, without its markup."""
    collector = TextCollector()
    translate_html([page], collector, language)
    return collector.text


def _links(ways: Sequence[Sequence[Translation]]) -> list[list[Link]]:
    """The word links of translations; of those through a pivot language, from words to words by the words between."""
    hops: list[list[list[Link]]] = []
    for answers in zip(*ways, strict=True):
        translator = answers[0].translator
        assert translator is not None
        if translator.alignment is None:
            return [[] for _ in ways]
        hops.append(alignments(translator, [each.parts for each in answers], answers[0].to))
    return [reduce(compose_links, links) for links in zip(*hops, strict=True)]


def _check_terms(route: Route, glossary: Glossary) -> None:
    if len(route) > 1 and glossary.terms:
        raise UsageError(
            f"{route[0][0].source} to {route[-1][1]} goes through {route[0][1]}, and a glossary needs one model for "
            "both languages; leave it out"
        )


class ServerMemory:
    """Finds earlier translations, and keeps new ones if the server is told to remember."""

    def __init__(self, registry: ModelRegistry, settings: ServeSettings) -> None:
        self.registry, self.files = registry, settings.memories
        self._memories: dict[tuple[str, str], TranslationMemory] = {}
        self.kept = KeptAnswers(Path(settings.remember)) if settings.remember else None

    def close(self) -> None:
        if self.kept is not None:
            self.kept.close()

    def find(self, source: str, target: str, text: str) -> list[MemoryMatch]:
        """Similar segments of the server's translation memories in two languages, best first."""
        key, files = (source, target), self.files
        if files and key not in self._memories:
            try:
                self._memories[key] = TranslationMemory.read(files, source, target)
            except DataError as error:  # such as a memory of other languages: the translation goes on without it
                warnings.warn(f"no translation memory for {source} to {target}: {error}", stacklevel=2)
                self._memories[key] = TranslationMemory([])
        found = self._memories[key].find(text) if files else []
        if self.kept is not None:
            found += [each for each in self.kept.find(key, text) if each not in found]
        return sorted(found, key=lambda each: -each.similarity)[:MOST_MATCHES]

    def correct(self, source: str, target: str, text: str, said: str) -> None:
        """Remember what a person wrote as the translation of a text, and of each of its sentences if they correspond.

        The languages are the model's own codes, if a model has both.
        """
        if self.kept is None:
            return
        infos = [each.reading(source) for each in self.registry.translation_models() if each.reads(source)]
        own = ((info.source, to) for info in infos if (to := info.target(target)))
        source, target = languages = next(own, (source, target))
        parts = split_text(text, source).sentences, split_text(said, target).sentences
        pairs = list(zip(*parts, strict=True)) if len(parts[0]) == len(parts[1]) else []
        self.kept.keep(languages, [(text, said), *pairs], corrected=True)

    def applied(
        self,
        info: ModelInfo,
        to: str,
        answers: Sequence[Translation],
        asked: AskedSettings = AS_THE_MODEL,
        glossary: Glossary = NO_TERMS,
    ) -> list[Translation]:
        """Answers with what persons wrote instead of some of them; the others are remembered, if the server does so."""
        if self.kept is None or glossary.terms or asked.sample:
            return list(answers)
        languages = info.source, to
        written = [self.kept.correction(languages, each.source) for each in answers]
        own = [each for each, said in zip(answers, written, strict=True) if said is None and each.finished]
        self.kept.keep(languages, [(each.source, each.text) for each in own], model=info.id)
        return [
            each if said is None or each.translator is None else said_again(each.translator, each.source, said, to)
            for each, said in zip(answers, written, strict=True)
        ]
