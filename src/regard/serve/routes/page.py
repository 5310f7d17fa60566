"""The routes behind the page: translations with all that led to them, attention in pieces, and the models."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from regard.data.formats.languages import same_language
from regard.documents.language_id import Detected
from regard.errors import UsageError
from regard.inference.decoding.search_tree import Growth, path_to
from regard.inference.insight.forced_pass import kind_of
from regard.inference.insight.predictions import TOP
from regard.inference.pipelines.generation import Writer
from regard.inference.pipelines.translator import Partial, Translation, Translator, joined
from regard.layers.vision import ImageConfig
from regard.look.figures import View, save
from regard.look.page import quantise
from regard.look.scenes import Scene
from regard.serve.http.responses import error_response, stream_events, wait_for_result
from regard.serve.jobs.document_files import FORMATS
from regard.serve.models.attention_cache import (
    ALIGNMENT,
    Question,
    Recording,
    Sights,
    Wanted,
    encoded,
    foretold_pieces,
    pieces,
    score_pieces,
)
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslatedText, TranslationService, ranked
from regard.serve.routes.libretranslate import ERRORS
from regard.studies.costs.models import COSTS
from regard.studies.costs.plan import make_plan
from regard.studies.costs.units import byte_size, scaled
from regard.training.metrics import METRICS, read_metrics

EXAMPLES = 3  # sentences to try a model with
AUTO = "auto"  # the language is to be detected
MEDIA = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "json": "application/json"}


class Asked(BaseModel):
    """What every question about a text has."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    text: str
    to: str = ""


class TranslateRequest(Asked):
    """A text to translate: by the model named, or by one that the server picks for the two languages."""

    source: str = ""  # a language, or auto
    format: Literal["text", "html"] = "text"
    beam: Annotated[int, Field(ge=1)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1
    search: bool = False
    attention: bool = True


class Drawing(BaseModel):
    """How tokens are drawn; a temperature of 0 takes the most probable one."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class Writing(Drawing):
    """How a model writes on; 0 tokens: it only reads."""

    max_tokens: Annotated[int, Field(ge=0, le=1024)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class Foretelling(Drawing):
    """Which places' next or hidden tokens are wanted, and how many candidates of each."""

    places: tuple[int, int] | None = None
    top: Annotated[int, Field(ge=1, le=100)] = TOP


class Looked(Asked):
    """What is looked at: for a translator a sentence, for an encoder a text or two, for a writer a prompt."""

    target: str = ""
    pair: str = ""
    writing: Writing | None = None


class LookRequest(Looked):
    layers: list[str] | None = None
    heads: list[int] | None = None
    rows: tuple[int, int] | None = None
    side: Annotated[int, Field(ge=0, le=4096)] = 0
    scores: bool = False
    foretold: Foretelling | None = None


class ExportRequest(Looked):
    format: Literal["html", "svg", "png", "json"]
    layer: str = ""
    head: int | None = None


def page_router(service: TranslationService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds, sights = service.settings.seconds, Sights()

    @router.get("/models")
    def models() -> dict[str, Any]:
        listed = [_entry(service, info) for info in service.registry.infos()]
        translating = [each["id"] for each in listed if each["ability"] == "translate"]
        limits = {"characters": service.settings.characters, "bytes": service.settings.body}
        return {
            "models": listed,
            "default": next(iter(translating), None),
            "limits": limits,
            "documents": FORMATS,
            "training": service.settings.training,
        }

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        info = service.registry.find(name)
        return _entry(service, info) | _details(info)

    @router.post("/translate")
    async def translate(request: Request, asked: TranslateRequest) -> dict[str, Any]:
        return await wait_for_result(request, _translate(service, asked), seconds=seconds)

    @router.post("/translate/stream", response_class=StreamingResponse)
    async def stream(request: Request, asked: TranslateRequest) -> StreamingResponse:
        """The translation as it grows; the last event has all that `/api/translate` answers."""
        return await stream_events(request, sent_events(_growing(service, asked)), seconds=seconds)

    @router.post("/look")
    async def look(request: Request, asked: LookRequest) -> dict[str, Any]:
        question = _looked(service, asked)
        wanted = Wanted(asked.layers or [], asked.heads, asked.rows, asked.side)

        def see() -> dict[str, Any]:
            recording = sights.look(question, service.registry.model(question.model))
            found = score_pieces(recording, wanted) if asked.scores else pieces(recording, wanted)
            return recording.describe() | {"pieces": found, "foretold": _foretold(recording, asked.foretold)}

        return await wait_for_result(request, service.engine.run(see), seconds=seconds)

    @router.post("/look/stream", response_class=StreamingResponse)
    async def write(request: Request, asked: Looked) -> StreamingResponse:
        """What a model writes, as it is written; looking at it afterwards does not write it again."""
        told = ({"text": each.text} async for each in _written(service, sights, _looked(service, asked)))
        return await stream_events(request, sent_events(told), seconds=seconds)

    @router.post("/look/export", response_class=Response)
    async def export(request: Request, asked: ExportRequest) -> Response:
        question = _looked(service, asked)

        def see() -> bytes:
            return _drawn(sights.look(question, service.registry.model(question.model)).scene, asked)

        content = await wait_for_result(request, service.engine.run(see), seconds=seconds)
        name = f"regard-{asked.layer or 'attention'}.{asked.format}".replace("*", "all")
        disposition = f'attachment; filename="{_file_name(name)}"'
        return Response(content, media_type=MEDIA[asked.format], headers={"content-disposition": disposition})

    return router


def _looked(service: TranslationService, asked: Looked) -> Question:
    """What is to be looked at, with everything checked that can be before the model is there."""
    info = service.registry.find(asked.model)
    text, target, pair = service.check_limits([asked.text, asked.target, asked.pair])
    to = service.target_language(info, asked.to) if info.ability == "translate" else asked.to
    writing = asked.writing.model_dump() if asked.writing else {}
    return Question(info.id, text, to, target, pair, tuple(writing.items()))


def _foretold(recording: Recording, asked: Foretelling | None) -> list[dict[str, Any]]:
    if asked is None:
        return []
    drawing = asked.model_dump(include=asked.model_fields_set - {"places", "top"})
    return foretold_pieces(recording, asked.places, asked.top, drawing)


def _written(service: TranslationService, sights: Sights, question: Question) -> AsyncIterator[Partial]:
    """The text a model writes, as far as it is settled; nothing where there is nothing to write."""

    def begin() -> Iterator[Partial]:
        writer, writing = service.registry.model(question.model), dict(question.writing)
        if not isinstance(writer, Writer) or question.target or not writing.get("max_tokens"):
            return
        told = ""
        for chunk in writer.stream(question.text, **writing):
            told += chunk.text
            if chunk.whole is not None:
                sights.keep_written(question, writer, chunk.whole)
            yield Partial(told)

    return service.engine.stream(begin)


# Translations


@dataclass(frozen=True)
class Choice:
    """What is to be translated, by which model, and how."""

    text: str
    info: ModelInfo | None  # None: the text is in the target language already
    to: str
    detected: Detected | None
    changes: dict[str, Any]


async def _choose(service: TranslationService, asked: TranslateRequest) -> Choice:
    """The model that was named, or the one for the languages, which may have to be detected."""
    (text,), limits, detected = service.check_limits([asked.text]), service.settings, None
    if (asked.beam or 1) > limits.beam or asked.n_best > limits.alternatives + 1:
        raise UsageError(f"beam may be {limits.beam} at most, and n_best {limits.alternatives + 1}")
    changes = ({"n_best": asked.n_best} if asked.n_best > 1 else {}) | ({"beam": asked.beam} if asked.beam else {})
    if asked.model or not asked.source:
        return Choice(text, *_named(service, asked), None, changes)
    source = asked.source
    if source == AUTO:
        detected = (await run_in_threadpool(service.detect_language, text, asked.to))[0]
        source = detected.language
    if same_language(source, asked.to):
        return Choice(text, None, asked.to, detected, changes)
    return Choice(text, *service.find_model(source, asked.to), detected, changes)


def _named(service: TranslationService, asked: TranslateRequest) -> tuple[ModelInfo, str]:
    info = service.registry.find(asked.model)
    if info.ability != "translate":
        raise UsageError(f"{info.id} does not translate; ask it through the OpenAI API")
    if asked.source not in ("", AUTO) and not same_language(info.source, asked.source):
        raise UsageError(f"{info.id} reads {info.source}, not {asked.source}; choose another model")
    return info, service.target_language(info, asked.to)


async def _translate(service: TranslationService, asked: TranslateRequest) -> dict[str, Any]:
    choice, began = await _choose(service, asked), time.monotonic()
    info = choice.info
    if info is None or asked.format == "html" or asked.search:
        return [event async for event in _told(service, asked, choice)][-1]["answer"]
    (spoken,) = await service.translate(info, choice.to, [choice.text], **choice.changes)
    return await _explained(service, asked, choice, spoken, None, time.monotonic() - began)


async def _growing(service: TranslationService, asked: TranslateRequest) -> AsyncIterator[dict[str, Any]]:
    """What a stream tells: that a model is loaded first, the text as it grows, and the whole answer."""
    choice = await _choose(service, asked)
    if choice.info is not None and not service.registry.is_loaded(choice.info.id):
        yield {"loading": choice.info.id}
    async for event in _told(service, asked, choice):
        yield event


async def _told(service: TranslationService, asked: TranslateRequest, choice: Choice) -> AsyncIterator[dict[str, Any]]:
    """The text as it grows, then the whole answer; each sentence is computed once."""
    info, began, growth = choice.info, time.monotonic(), Growth()
    if info is None or not choice.text.strip():
        yield {"done": True, "answer": _plain(choice, choice.text)}
        return
    if asked.format == "html":
        (page,), truncated = await service.translate_html(info, choice.to, [choice.text])
        (unknown,) = await service.unknown_in_html(info, [choice.text])
        answer = _plain(choice, page, truncated, time.monotonic() - began)
        yield {"done": True, "answer": answer | {"unknown": [each.to_json() for each in unknown]}}
        return
    watch = growth.watch if asked.search else lambda search: None
    async for growing in service.stream(info, choice.to, choice.text, watch=watch, **choice.changes):
        yield {"text": growing.text}
    assert growing.final is not None
    tree = growth if asked.search else None
    answer = await _explained(service, asked, choice, growing.final, tree, time.monotonic() - began)
    yield {"done": True, "answer": answer} | ({"truncated": True} if growing.truncated else {})


def _answer(choice: Choice, seconds: float) -> dict[str, Any]:
    """What every answer has."""
    return {
        "model": choice.info.id if choice.info else None,
        "source": choice.text,
        "from": choice.info.source if choice.info else choice.to,
        "to": choice.to,
        "detected": choice.detected._asdict() if choice.detected else None,
        "milliseconds": round(1000 * seconds, 1),
    }


def _plain(choice: Choice, text: str, truncated: bool = False, seconds: float = 0.0) -> dict[str, Any]:
    """An answer that is a text and nothing to look at: HTML, or what came back as it was."""
    said: dict[str, Any] = {"text": text, "score": None, "truncated": truncated, "attention": None}
    said |= {"tokens": [], "words": [], "alignment": []}
    answer = _answer(choice, seconds) | {"translations": [said] if text.strip() else [], "search": None}
    return answer | {"source_words": [], "source_tokens": [], "unknown": [], "unknown_at": []}


async def _explained(
    service: TranslationService,
    asked: TranslateRequest,
    choice: Choice,
    spoken: TranslatedText,
    growth: Growth | None,
    seconds: float,
) -> dict[str, Any]:
    """A translation with its words, tokens, attention and search."""
    assert choice.info is not None
    name, to = choice.info.id, choice.to

    def explain() -> dict[str, Any]:
        translator = service.registry.translator(name)
        ways = _ranked(spoken)
        tokens = [translator.tokenizer.source_ids([each.source], to)[0] for each in spoken.sentences]
        return {
            "source_words": [word for each in spoken.sentences for word in each.source_words],
            "source_tokens": [piece for ids in tokens for piece in translator.tokenizer.source.pieces(ids)],
            "translations": [_translation(text, way, translator, asked.attention) for text, way in ways.items()],
            "search": _tree(translator, growth) if growth and growth.search else None,
            "unknown": [each.to_json() for each in spoken.unknown],
            "unknown_at": _unknown_at(spoken),
        }

    return _answer(choice, seconds) | await service.engine.run(explain, accepted=True)


def _unknown_at(spoken: TranslatedText) -> list[int]:
    """Which of the source words the model does not know, or not all of; signs beside a known word do not count."""
    unknown = [
        any(
            word.start() < end and start < word.end()
            for text, start, end in each.unknown
            if any(map(str.isalnum, text))
        )
        for each in spoken.sentences
        for word in re.finditer(r"\S+", each.source)
    ]
    return [place for place, is_unknown in enumerate(unknown) if is_unknown]


def _ranked(spoken: TranslatedText) -> dict[str, Translation]:
    """The best translation of a whole text, the next best, and so on, by their texts, which are all different."""
    most = max((len(each.alternatives) for each in spoken.sentences), default=-1)
    ways: dict[str, Translation] = {}
    for rank in range(most + 1):
        ways.setdefault(spoken.ranked(rank), joined([ranked(each, rank) for each in spoken.sentences]))
    return ways


def _translation(text: str, answer: Translation, translator: Translator, attention: bool) -> dict[str, Any]:
    """One way to say a whole text; `text` has the spaces and line breaks of the source."""
    looks = attention and translator.alignment is not None and answer.target_words
    return {
        "text": text,
        "score": answer.score,
        "tokens": answer.tokens,
        "truncated": answer.truncated,
        "words": answer.target_words,
        "alignment": answer.alignment if looks else [],
        "attention": encoded(quantise(answer.attention)) if looks else None,
    }


def _tree(translator: Translator, growth: Growth) -> dict[str, Any]:
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


async def sent_events(told: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """A growing text as server-sent events; the last event says that it is done."""
    began = done = False
    try:
        async for event in told:
            yield _event(event)
            began, done = True, "done" in event
        if not done:
            yield _event({"done": True})
    except Exception as error:
        if not began:
            raise
        yield f"data: {bytes(error_response('/api', error).body).decode()}\n\n"


def _event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


# Pictures


def _drawn(scene: Scene, asked: ExportRequest) -> bytes:
    """The file asked for: one layer or head, the words' alignment, or everything."""
    sight = scene.sight()
    if asked.layer not in ("", ALIGNMENT):
        sight = replace(sight.select(asked.layer, asked.head), alignment=None)
    view: View | None = "alignment" if asked.layer == ALIGNMENT else None
    with tempfile.TemporaryDirectory(prefix="regard-export-") as folder:
        return save(sight, Path(folder) / f"look.{asked.format}", view=view).read_bytes()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name if letter.isascii())


# Models


def _entry(service: TranslationService, info: ModelInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "family": info.family,
        "title": info.title,
        "source": info.source,
        "targets": list(info.targets),
        "loaded": service.registry.is_loaded(info.id),
        "parameters": info.parameters,
        "bytes": info.bytes,
        "attention": bool(info.layers),
        "ability": info.ability,
        "answers": info.pipeline.answers,
        "foretells": info.predicts_tokens,
        "examples": _examples(info),
    }


def _examples(info: ModelInfo) -> list[str]:
    """Sentences to try a translator with: held-out ones of its own training, where its folder has some."""
    file = info.folder / METRICS
    return _held_out(file, file.stat().st_mtime_ns) if info.ability == "translate" and file.is_file() else []


@lru_cache(maxsize=64)
def _held_out(file: Path, changed: int) -> list[str]:
    """The shortest of the sentences that were translated last while training; `changed` is when the file was."""
    samples = [row for row in read_metrics(file) if row.get("kind") == "samples"]
    found = {pair["source"] for row in samples[-1:] for pair in row["pairs"]}
    return sorted(found, key=lambda each: (len(each), each))[:EXAMPLES]


def _details(info: ModelInfo) -> dict[str, Any]:
    """The config, the card, the recipe and last metrics, the layers, and what the model costs."""
    return {
        "config": info.config.model_dump(mode="json"),
        "card": _text(info.folder / "README.md") or "",
        "recipe": _text(info.folder / "recipe.toml"),
        "metrics": _metrics(info.folder / METRICS),
        "layers": [{"name": name, "kind": kind_of(name), "heads": heads} for name, heads in info.layers.items()],
        "plan": _costs(info),
    }


def _costs(info: ModelInfo) -> list[list[str]]:
    """What the model takes; of other families than the translators', only its weights are worked out so far."""
    weights = [["Parameters", f"{info.parameters:,}"], ["Weights in memory", byte_size(4 * info.parameters)]]
    if info.family not in COSTS:
        return weights
    plan = make_plan(str(info.folder), batch=1)
    length, entries = f"of {plan.source_length} tokens", sum(each.entries for each in plan.costs.matrices)
    if isinstance(info.config, ImageConfig):
        return [
            *weights,
            ["To look at a picture, forward", f"{scaled(plan.forward_flops)}FLOPs"],
            ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
            ["Attention weights of a picture", f"{entries:,}"],
        ]
    return [
        *weights,
        [f"To translate a sentence {length}, forward", f"{scaled(plan.forward_flops)}FLOPs"],
        ["To train on it, with gradients and optimiser", byte_size(sum(plan.memory.values()))],
        [f"Attention weights of a sentence {length}", f"{entries:,}"],
        ["Remembered of a source while decoding", byte_size(plan.cache["sentence"])],
        ["Remembered of each hypothesis", byte_size(plan.cache["hypothesis"])],
    ]


def _text(file: Path) -> str | None:
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else None


def _metrics(file: Path) -> dict[str, Any] | None:
    """What was measured at the end of training: on the test set where there was one."""
    rows = read_metrics(file)
    measured = {row["kind"]: row for row in rows if row.get("kind") in ("valid", "test")}
    return measured.get("test") or measured.get("valid")
