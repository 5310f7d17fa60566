"""Attention of texts for the page: panels in pieces, texts as they are generated, and files."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from regard.families.language.generator import TextGenerator
from regard.families.translation.translation import Partial
from regard.look.figures import View
from regard.look.predictions import TOP
from regard.look.report import AttentionReport
from regard.look.save import save
from regard.serve.http.events import server_sent_events
from regard.serve.http.responses import stream_events, wait_for_result
from regard.serve.models.attention_cache import ALIGNMENT, AttentionCache, Question, TextRecording
from regard.serve.models.attention_pieces import Selection, prediction_pieces, score_pieces, weight_pieces
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.libretranslate import ERRORS

MAX_HEADS = 4096  # that are switched off at once
MEDIA_TYPES = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "json": "application/json"}


class SamplingRequest(BaseModel):
    """How tokens are drawn; a temperature of 0 takes the most probable one."""

    model_config = ConfigDict(extra="forbid")

    temperature: Annotated[float, Field(ge=0, le=5)] = 1.0
    top_k: Annotated[int, Field(ge=0)] = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class GenerationRequest(SamplingRequest):
    """How a model continues a text; with 0 tokens it only reads."""

    max_tokens: Annotated[int, Field(ge=0, le=1024)]
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0


class PredictionRequest(SamplingRequest):
    """The places whose next or hidden tokens are wanted, and the number of candidates at each."""

    places: tuple[int, int] | None = None
    top: Annotated[int, Field(ge=1, le=100)] = TOP


class InputRequest(BaseModel):
    """The input to inspect: a sentence for a translator, a text or two for an encoder, a prompt for a generator."""

    model_config = ConfigDict(extra="forbid")

    model: str = ""
    text: str
    to: str = ""
    target: str = ""
    pair: str = ""
    writing: GenerationRequest | None = None
    without: Annotated[list[str], Field(max_length=MAX_HEADS)] = []


class NeuronRequest(InputRequest):
    """An input, and a query and a key of a head."""

    layer: str
    head: Annotated[int, Field(ge=0)]
    query: Annotated[int, Field(ge=0)]
    key: Annotated[int, Field(ge=0)]


class LookRequest(InputRequest):
    """An input, and which weights or scores and which predictions of it are wanted."""

    layers: list[str] | None = None
    heads: list[int] | None = None
    rows: tuple[int, int] | None = None
    side: Annotated[int, Field(ge=0, le=4096)] = 0
    scores: bool = False
    predictions: PredictionRequest | None = None


class ExportRequest(InputRequest):
    """An input, and what of it is written to a file."""

    format: Literal["html", "svg", "png", "json"]
    layer: str = ""
    head: int | None = None


def attention_router(service: TranslationService, cache: AttentionCache) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds = service.settings.seconds

    def recording_of(question: Question) -> TextRecording:
        return cache.text(question, service.registry.model(question.model))

    @router.post("/look")
    async def look(request: Request, asked: LookRequest) -> dict[str, Any]:
        question = _question(service, asked)
        wanted = Selection(asked.layers or [], asked.heads, asked.rows, asked.side)

        def compute() -> dict[str, Any]:
            recording = recording_of(question)
            found = score_pieces(recording, wanted) if asked.scores else weight_pieces(recording, wanted)
            says = {"says": recording.says()} if asked.layers is None else {}  # once for each input
            predicted = _predictions(recording, asked.predictions)
            return recording.describe() | says | {"pieces": found, "predictions": predicted}

        return await wait_for_result(request, service.engine.run(compute), seconds=seconds)

    @router.post("/look/neurons")
    async def look_at_neurons(request: Request, asked: NeuronRequest) -> dict[str, Any]:
        """The score of a query and a key, dimension by dimension."""
        question = _question(service, asked)

        def compute() -> dict[str, Any]:
            return recording_of(question).neurons(asked.layer, asked.head, asked.query, asked.key).to_json()

        return await wait_for_result(request, service.engine.run(compute), seconds=seconds)

    @router.post("/look/logit-lens")
    async def logit_lens(request: Request, asked: InputRequest) -> dict[str, Any]:
        """What every layer would have said, if the model had ended there."""
        question = _question(service, asked)
        return await wait_for_result(
            request, service.engine.run(lambda: recording_of(question).logit_lens().to_json()), seconds=seconds
        )

    @router.post("/look/stream", response_class=StreamingResponse)
    async def write(request: Request, asked: InputRequest) -> StreamingResponse:
        """What a model writes, as it is written; looking at it afterwards does not write it again."""
        texts = ({"text": each.text} async for each in _generated(service, cache, _question(service, asked)))
        return await stream_events(request, server_sent_events(texts), seconds=seconds)

    @router.post("/look/export", response_class=Response)
    async def export(request: Request, asked: ExportRequest) -> Response:
        question = _question(service, asked)

        def compute() -> bytes:
            return _file(recording_of(question).report(), asked)

        content = await wait_for_result(request, service.engine.run(compute), seconds=seconds)
        name = f"regard-{asked.layer or 'attention'}.{asked.format}".replace("*", "all")
        disposition = f'attachment; filename="{_file_name(name)}"'
        return Response(content, media_type=MEDIA_TYPES[asked.format], headers={"content-disposition": disposition})

    return router


def _question(service: TranslationService, asked: InputRequest) -> Question:
    """The input of a request, with everything checked that can be before the model is loaded."""
    info = service.registry.find(asked.model)
    text, target, pair = service.check_limits([asked.text, asked.target, asked.pair])
    to = service.languages.target_language(info, asked.to) if info.ability == "translate" else asked.to
    generation = asked.writing.model_dump() if asked.writing else {}
    return Question(info.id, text, to, target, pair, tuple(generation.items()), tuple(asked.without))


def _predictions(recording: TextRecording, asked: PredictionRequest | None) -> list[dict[str, Any]]:
    if asked is None:
        return []
    sampling = asked.model_dump(include=asked.model_fields_set - {"places", "top"})
    return prediction_pieces(recording, asked.places, asked.top, sampling)


def _generated(service: TranslationService, cache: AttentionCache, question: Question) -> AsyncIterator[Partial]:
    """The text that a model generates, as far as it is final; nothing if the question asks for none."""

    def begin() -> Iterator[Partial]:
        generator, generation = service.registry.model(question.model), dict(question.generation)
        if not isinstance(generator, TextGenerator) or question.target or not generation.get("max_tokens"):
            return
        if question.without:  # a stream is interrupted by other questions, which need the whole model
            return
        text = ""
        for chunk in generator.stream(question.text, **generation):
            text += chunk.text
            if chunk.whole is not None:
                cache.keep_completion(question, generator, chunk.whole)
            yield Partial(text)

    return service.engine.stream(begin)


def _file(report: AttentionReport, asked: ExportRequest) -> bytes:
    """The file asked for: one layer or head, the word alignment, or everything."""
    if asked.layer not in ("", ALIGNMENT):
        report = replace(report.select(asked.layer, asked.head), alignment=None)
    view: View | None = "alignment" if asked.layer == ALIGNMENT else None
    with tempfile.TemporaryDirectory(prefix="regard-export-") as folder:
        return save(report, Path(folder) / f"look.{asked.format}", view=view).read_bytes()


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name if letter.isascii())
