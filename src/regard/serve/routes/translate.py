"""Translations for the page, with words, tokens, attention, alternatives and the search; and translated documents."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, StreamingResponse

from regard.data.formats.languages import same_language
from regard.documents.language_id import Detected
from regard.errors import UsageError
from regard.families.translation.glossary import Glossary
from regard.families.translation.translation import Translation, joined
from regard.families.translation.translator import Translator
from regard.look.page import quantise
from regard.search.search_tree import Growth, path_to
from regard.serve.http.fields import open_fields, optional_flag, read_glossary, required_file, required_text
from regard.serve.http.responses import StrictRequest, keyed_router, server_sent_events, stream_events, wait_for_result
from regard.serve.jobs.documents import AUTO, Document, DocumentJobs
from regard.serve.models.attention_cache import encode
from regard.serve.models.batching import AskedSettings
from regard.serve.models.registry import ModelInfo, Route
from regard.serve.models.translation_service import TranslatedText, TranslationService, ranked

PROGRESS_INTERVAL = 0.4  # seconds between two progress events
FORM_SCHEMA = {
    "type": "object",
    "required": ["file", "source", "to"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        **{field: {"type": "string"} for field in ("source", "to", "model", "glossary")},
        "replace": {"type": "boolean"},
    },
}


class TranslateRequest(StrictRequest):
    """A text to translate, by the model named or by one that the server chooses for the two languages."""

    model: str = ""
    text: str
    to: str = ""
    source: str = ""  # a language, or auto
    format: Literal["text", "html"] = "text"
    beam: Annotated[int, Field(ge=1)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1
    search: bool = False
    attention: bool = True
    quality: bool = False  # estimate the quality of each translation, and the doubt of each word
    glossary: str = ""  # lines of source TAB target


def translate_router(service: TranslationService, documents: DocumentJobs) -> APIRouter:
    router, seconds = keyed_router("/api"), service.settings.seconds

    @router.post("/translate")
    async def translate(request: Request, asked: TranslateRequest) -> dict[str, Any]:
        return await wait_for_result(request, _translate(service, asked), seconds=seconds)

    @router.post("/translate/stream", response_class=StreamingResponse)
    async def stream(request: Request, asked: TranslateRequest) -> StreamingResponse:
        """The translation as it grows; the last event has all that `/api/translate` answers."""
        return await stream_events(request, server_sent_events(_events(service, asked)), seconds=seconds)

    @router.post(
        "/documents",
        response_class=StreamingResponse,
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}},
    )
    async def translate_document(request: Request) -> StreamingResponse:
        """Progress events; the last one has the token for downloading the translated document."""
        document, task = await _start_upload(service, documents, request)
        events = _watch_upload(service, documents, document, task)
        return await stream_events(request, server_sent_events(events), seconds=service.settings.seconds)

    @router.get("/documents/{token}", response_class=FileResponse)
    async def fetch(request: Request, token: str) -> FileResponse:
        path, name = await documents.translation(request, token)
        return FileResponse(path, filename=name, media_type="application/octet-stream")

    return router


@dataclass(frozen=True)
class Plan:
    """What is to be translated, by which model, and with which settings."""

    text: str
    info: ModelInfo | None  # None: the text is in the target language already
    to: str
    detected: Detected | None
    asked: AskedSettings
    glossary: Glossary
    route: Route = ()  # two models through a pivot language, if none has both languages


async def _plan(service: TranslationService, asked: TranslateRequest) -> Plan:
    """The named model, or the one for the two languages; the source language may have to be detected."""
    (text,), limits, detected = service.check_limits([asked.text]), service.settings, None
    if (asked.beam or 1) > limits.beam or asked.n_best > limits.alternatives + 1:
        raise UsageError(f"beam may be {limits.beam} at most, and n_best {limits.alternatives + 1}")
    search = AskedSettings(n_best=asked.n_best if asked.n_best > 1 else None, beam=asked.beam or None)
    glossary = await read_glossary({"glossary": service.check_limits([asked.glossary])[0]}, limits)
    if asked.model or not asked.source:
        return Plan(text, *_named_model(service, asked), None, search, glossary)
    source = asked.source
    if source == AUTO:
        detected = (await run_in_threadpool(service.languages.detect_language, text, asked.to))[0]
        source = detected.language
    if same_language(source, asked.to):
        return Plan(text, None, asked.to, detected, search, glossary)
    route = service.languages.find_route(source, asked.to)
    info, to = route[-1]
    return Plan(text, info, to, detected, search, glossary, route if len(route) > 1 else ())


def _named_model(service: TranslationService, asked: TranslateRequest) -> tuple[ModelInfo, str]:
    info = service.registry.find(asked.model)
    if info.ability != "translate":
        raise UsageError(f"{info.id} does not translate; ask it through the OpenAI API")
    if asked.source not in ("", AUTO):
        if not info.reads(asked.source):
            raise UsageError(f"{info.id} reads {', '.join(info.sources)}, not {asked.source}; choose another model")
        info = info.reading(asked.source)
    return info, service.languages.target_language(info, asked.to)


async def _translate(service: TranslationService, asked: TranslateRequest) -> dict[str, Any]:
    plan, began = await _plan(service, asked), time.monotonic()
    info = plan.info
    if info is None or asked.format == "html" or asked.search or plan.route:
        return [event async for event in _translation_events(service, asked, plan)][-1]["answer"]
    (translated,) = await service.translate(info, plan.to, [plan.text], plan.asked, plan.glossary)
    return await _explained_answer(service, asked, plan, translated, None, time.monotonic() - began)


async def _events(service: TranslationService, asked: TranslateRequest) -> AsyncIterator[dict[str, Any]]:
    """The events of a stream: that a model has to be loaded, the text as it grows, and the whole answer."""
    plan = await _plan(service, asked)
    if plan.info is not None and not service.registry.is_loaded(plan.info.id):
        yield {"loading": plan.info.id}
    async for event in _translation_events(service, asked, plan):
        yield event


async def _translation_events(
    service: TranslationService, asked: TranslateRequest, plan: Plan
) -> AsyncIterator[dict[str, Any]]:
    """The text as it grows, then the whole answer; each sentence is computed once."""
    info, began, growth = plan.info, time.monotonic(), Growth()
    if info is None or not plan.text.strip():
        yield {"done": True, "answer": _plain_answer(plan, plan.text)}
        return
    if plan.route and asked.format == "text":
        yield {"done": True, "answer": await _answer_by_pivot(service, asked, plan, began)}
        return
    if asked.format == "html":
        route = plan.route or [(info, plan.to)]
        (page,), truncated = await service.translate_html(route, [plan.text], plan.glossary)
        (unknown,) = await service.unknown_in_html(route[0][0], [plan.text])
        answer = _plain_answer(plan, page, truncated, time.monotonic() - began)
        yield {"done": True, "answer": answer | {"unknown": [each.to_json() for each in unknown]}}
        return
    watch = growth.watch if asked.search else lambda search: None
    async for growing in service.stream(info, plan.to, plan.text, plan.asked, glossary=plan.glossary, watch=watch):
        yield {"text": growing.text}
    assert growing.final is not None
    tree = growth if asked.search else None
    answer = await _explained_answer(service, asked, plan, growing.final, tree, time.monotonic() - began)
    yield {"done": True, "answer": answer} | ({"truncated": True} if growing.truncated else {})


def _answer_head(plan: Plan, seconds: float) -> dict[str, Any]:
    """The fields that every answer has."""
    reads = plan.route[0][0] if plan.route else plan.info
    return {
        "model": plan.info.id if plan.info and not plan.route else None,
        "source": plan.text,
        "from": reads.source if reads else plan.to,
        "to": plan.to,
        "pivot": {"language": plan.route[0][1], "text": ""} if plan.route else None,
        "detected": plan.detected._asdict() if plan.detected else None,
        "milliseconds": round(1000 * seconds, 1),
    }


def _plain_answer(plan: Plan, text: str, truncated: bool = False, seconds: float = 0.0) -> dict[str, Any]:
    """An answer that is only a text: HTML, or a text that needed no translation."""
    said: dict[str, Any] = {"text": text, "score": None, "truncated": truncated, "attention": None}
    said |= {"tokens": [], "words": [], "alignment": [], "terms": []}
    answer = _answer_head(plan, seconds) | {"translations": [said] if text.strip() else [], "search": None}
    answer |= {"memory": []}
    return answer | {"source_words": [], "source_tokens": [], "unknown": [], "unknown_at": []}


async def _answer_by_pivot(
    service: TranslationService, asked: TranslateRequest, plan: Plan, began: float
) -> dict[str, Any]:
    """The answer of two models, with the text between them."""
    (translated,) = await service.translate_along(plan.route, [plan.text], plan.asked, plan.glossary)
    assert translated.way is not None
    answer = _plain_answer(plan, translated.text, translated.truncated, time.monotonic() - began)
    answer["pivot"]["text"] = translated.way.text
    if asked.quality:
        (assessment,) = await service.assess([translated])
        for said in answer["translations"]:
            said |= {**assessment.to_json(), "doubts": []}  # the page shades words that it does not have here
    return answer | {"unknown": [each.to_json() for each in translated.unknown]}


async def _explained_answer(
    service: TranslationService,
    asked: TranslateRequest,
    plan: Plan,
    translated: TranslatedText,
    growth: Growth | None,
    seconds: float,
) -> dict[str, Any]:
    """A translation with its words, tokens, attention and search."""
    assert plan.info is not None
    name, to = plan.info.id, plan.to

    def explain() -> dict[str, Any]:
        translator = service.registry.translator(name)
        ways = _by_rank(translated)
        tokens = [translator.tokenizer.source_ids([each.source], to)[0] for each in translated.sentences]
        return {
            "source_words": [word for each in translated.sentences for word in each.source_words],
            "source_tokens": [piece for ids in tokens for piece in translator.tokenizer.source.pieces(ids)],
            "translations": [_translation(text, way, translator, asked) for text, way in ways.items()],
            "search": _search_tree(translator, growth) if growth and growth.search else None,
            "unknown": [each.to_json() for each in translated.unknown],
            "unknown_at": _unknown_places(translated),
        }

    matches = await run_in_threadpool(service.memory.find, plan.info.source, to, plan.text)
    memory = {"memory": [each.to_json(plan.text) for each in matches]}
    return _answer_head(plan, seconds) | memory | await service.engine.run(explain, accepted=True)


def _unknown_places(translated: TranslatedText) -> list[int]:
    """The source words that the model does not know in whole or in part; unknown punctuation does not count."""
    unknown = [
        any(
            word.start() < end and start < word.end()
            for text, start, end in each.unknown
            if any(map(str.isalnum, text))
        )
        for each in translated.sentences
        for word in re.finditer(r"\S+", each.source)
    ]
    return [place for place, is_unknown in enumerate(unknown) if is_unknown]


def _by_rank(translated: TranslatedText) -> dict[str, Translation]:
    """The best translation of a whole text, the next best, and so on, by their texts, without repetitions."""
    most = max((len(each.alternatives) for each in translated.sentences), default=-1)
    ways: dict[str, Translation] = {}
    for rank in range(most + 1):
        ways.setdefault(translated.ranked(rank), joined([ranked(each, rank) for each in translated.sentences]))
    return ways


def _translation(text: str, answer: Translation, translator: Translator, asked: TranslateRequest) -> dict[str, Any]:
    """One translation of a whole text; `text` has the spaces and line breaks of the source."""
    has_attention = asked.attention and translator.alignment is not None and answer.target_words
    return {
        "text": text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "words": answer.target_words,
        "alignment": answer.alignment if has_attention else [],
        "attention": encode(quantise(answer.attention)) if has_attention else None,
        "terms": _term_words(answer),
    } | (answer.assessment.to_json() if asked.quality else {})


def _term_words(answer: Translation) -> list[int]:
    """The numbers of the words of a translation that say a term of the glossary."""
    places = [(use.target_start, use.target_end) for use in answer.terms]
    words = enumerate(re.finditer(r"\S+", answer.text))
    return [number for number, word in words if any(word.start() < end and start < word.end() for start, end in places)]


def _search_tree(translator: Translator, growth: Growth) -> dict[str, Any]:
    search, nodes = growth.search, growth.nodes
    assert search is not None
    found = search.results()[0]
    best = path_to(nodes, found[0], search.vocabulary.end)
    pieces_of = translator.tokenizer.target.pieces
    listed = [
        {
            "id": node.id, "parent": node.parent, "step": node.step, "state": node.state, "best": node.id in best,
            "token": "</s>" if node.token == search.vocabulary.end else pieces_of([node.token])[0],
            "total": round(node.total, 4), "score": round(node.score, 4),
        }
        for node in nodes
    ]  # fmt: skip
    return {"width": search.width, "nodes": listed}


async def _start_upload(
    service: TranslationService, documents: DocumentJobs, request: Request
) -> tuple[Document, asyncio.Task[None]]:
    """Take a document from a form, whole, and start its translation: who waits for a client to go away reads too."""
    async with open_fields(request) as given:
        upload, source, to = required_file(given, "file"), required_text(given, "source"), required_text(given, "to")
        glossary, replace = await read_glossary(given, service.settings), optional_flag(given, "replace")
        document = await documents.save(upload.filename or "", upload.file)
    model = str(given.get("model") or "")
    return document, documents.start(document, source, to, model=model, glossary=glossary, replace=replace)


async def _watch_upload(
    service: TranslationService, documents: DocumentJobs, document: Document, task: asyncio.Task[None]
) -> AsyncIterator[dict[str, Any]]:
    """The progress of a document; it is given up when its client goes away."""
    try:
        async for event in _progress(service, document, task):
            yield event
    except BaseException:
        documents.remove(document.token)
        raise


async def _progress(
    service: TranslationService, document: Document, task: asyncio.Task[None]
) -> AsyncIterator[dict[str, Any]]:
    told = set[str]()
    while not task.done():
        if document.detected and "detected" not in told:
            told.add("detected")
            yield {"detected": document.detected._asdict()}
        unloaded = [info.id for info, _ in document.route if not service.registry.is_loaded(info.id)]
        if unloaded and "loading" not in told:
            told.add("loading")
            yield {"loading": unloaded[0]}
        if document.of is not None:
            yield {"sentences": document.sentences, "of": document.of}
        await asyncio.wait({task}, timeout=PROGRESS_INTERVAL)
    task.result()
    if document.detected and "detected" not in told:
        yield {"detected": document.detected._asdict()}
    if document.unchanged:
        yield {"done": True, "token": document.token, "unchanged": True}
        return
    yield {"sentences": document.sentences, "of": document.of}
    model = document.route[-1][0].id
    yield {"done": True, "token": document.token, "model": model, "truncated": document.truncated, **document.counts}
