"""Attention for the page: of texts and of files.

Texts: panels in pieces, texts as they are generated, and exports. Files: the answer of any model that reads them, and
the attention of each of its layers; the view of the model's pipeline makes both.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from regard.attention.record import attention_names
from regard.data.images.reading import read_image
from regard.errors import UsageError
from regard.families.catalog import PIPELINES
from regard.families.contract import IMAGE, TEXT, PipelineEntry
from regard.look.figures import View
from regard.look.inspection import GivenInput, inspect_input
from regard.look.interventions import models_of, without_heads
from regard.look.predictions import TOP
from regard.look.report import AttentionReport
from regard.look.save import save
from regard.serve.http.responses import NotFoundError, StrictRequest, keyed_router, server_sent_events, stream_events
from regard.serve.models.attention_cache import (
    ALIGNMENT,
    AttentionCache,
    FileRecording,
    Question,
    Selection,
    TextRecording,
    encode,
    prediction_pieces,
    score_pieces,
    weight_pieces,
)
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService

MAX_WEIGHTS = 64 * 2**20  # of one file
MAX_HEADS = 4096  # that are switched off at once
NOT_KEPT = "that input is not kept any more; look at it again"
MEDIA_TYPES = {"html": "text/html", "svg": "image/svg+xml", "png": "image/png", "json": "application/json"}


class SamplingRequest(StrictRequest):
    """How tokens are drawn; a temperature of 0 takes the most probable one."""

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


class InputRequest(StrictRequest):
    """The input to inspect: a sentence for a translator, a text or two for an encoder, a prompt for a generator."""

    model: str = ""
    text: str
    to: str = ""
    target: str = ""
    pair: str = ""
    writing: GenerationRequest | None = None
    without: list[str] = Field(default=[], max_length=MAX_HEADS)


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


class LayerRequest(StrictRequest):
    """A layer of an input, by the id of the input and the number of the layer."""

    id: str
    layer: int


class NeuronsRequest(StrictRequest):
    """A query and a key of a head of an input, by the id of the input and the number of the panel."""

    id: str
    panel: int
    head: int
    query: int
    key: int


def attention_router(service: TranslationService, cache: AttentionCache) -> APIRouter:
    router = keyed_router("/api")

    def recording_of(question: Question) -> TextRecording:
        return cache.text(question, service.registry.model(question.model))

    @router.post("/look")
    async def look(request: Request, asked: LookRequest) -> dict[str, Any]:
        question = _question(service, asked)
        wanted = Selection(asked.layers or [], asked.heads, asked.rows, asked.side)

        def compute() -> dict[str, Any]:
            recording = recording_of(question)
            found = score_pieces(recording, wanted) if asked.scores else weight_pieces(recording, wanted)
            answer = recording.describe() | {"pieces": found, "predictions": _predictions(recording, asked.predictions)}
            if asked.layers is None:  # once for each input
                answer["says"] = recording.ask(lambda inspection: inspection.says())
            return answer

        return await service.compute(request, compute)

    @router.post("/look/neurons")
    async def look_at_neurons(request: Request, asked: NeuronRequest) -> dict[str, Any]:
        """The score of a query and a key, dimension by dimension."""
        question = _question(service, asked)

        place = asked.layer, asked.head, asked.query, asked.key
        return await service.compute(request, lambda: recording_of(question).neurons(*place).to_json())

    @router.post("/look/logit-lens")
    async def logit_lens(request: Request, asked: InputRequest) -> dict[str, Any]:
        """What every layer would have said, if the model had ended there."""
        question = _question(service, asked)
        return await service.compute(
            request, lambda: recording_of(question).ask(lambda inspection: inspection.logit_lens()).to_json()
        )

    @router.post("/look/stream", response_class=StreamingResponse)
    async def write(request: Request, asked: InputRequest) -> StreamingResponse:
        """What a model writes, as it is written; looking at it afterwards does not write it again."""
        texts = ({"text": text} async for text in _generated(service, cache, _question(service, asked)))
        return await stream_events(request, server_sent_events(texts), seconds=service.settings.seconds)

    @router.post("/look/export", response_class=Response)
    async def export(request: Request, asked: ExportRequest) -> Response:
        question = _question(service, asked)

        def compute() -> bytes:
            return _file(recording_of(question).ask(lambda inspection: inspection.report()), asked)

        content = await service.compute(request, compute)
        name = f"regard-{asked.layer or 'attention'}.{asked.format}".replace("*", "all")
        disposition = f'attachment; filename="{_file_name(name)}"'
        return Response(content, media_type=MEDIA_TYPES[asked.format], headers={"content-disposition": disposition})

    @router.post("/inspect")
    async def inspect(
        request: Request,
        file: UploadFile,
        model: Annotated[str, Form()] = "",
        text: Annotated[str, Form()] = "",
        options: Annotated[str, Form()] = "{}",
        without: Annotated[list[str], Form(max_length=MAX_HEADS)] = [],  # noqa: B006 - FastAPI copies it
    ) -> dict[str, Any]:
        """The model's answer to a file and, for some models, a text; and what can be looked at.

        `without` are heads that are switched off, as LAYER:HEAD.
        """
        info = service.registry.find(model)
        if info.pipeline.input == TEXT:
            raise UsageError(f"{info.id} reads texts, and does not look at files")
        (text,) = service.check_limits([text])
        given = GivenInput(await file.read(), file.filename or "file", text, _options(options))

        def compute() -> dict[str, Any]:
            recording, answer = _inspect(service, info, given, without)
            key = uuid4().hex
            cache.keep(key, recording)
            return {"id": key, "answer": answer, "report": recording.description, "without": without}

        return await service.compute(request, compute)

    @router.get("/inspect/examples")
    async def examples(model: str = "") -> list[dict[str, Any]]:
        """Built-in inputs to try a model with."""
        return _examples(service.registry.find(model).pipeline)

    @router.post("/inspect/layer")
    async def layer(asked: LayerRequest) -> dict[str, Any]:
        recording = cache.find(asked.id)
        maps = list(recording.maps.values()) if isinstance(recording, FileRecording) else []
        if not 0 <= asked.layer < len(maps):
            raise NotFoundError(NOT_KEPT)
        return encode(maps[asked.layer])

    @router.post("/inspect/neurons")
    async def neurons(asked: NeuronsRequest) -> dict[str, Any] | None:
        """The score of a query and a key, dimension by dimension; null if none are known, or the two do not meet."""
        recording = cache.find(asked.id)
        known = recording.neurons if isinstance(recording, FileRecording) else []
        if not 0 <= asked.panel < len(known):
            raise NotFoundError(NOT_KEPT)
        layer = known[asked.panel]
        found = None if layer is None else layer.at(asked.head, asked.query, asked.key)
        return None if found is None else found.to_json()

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


def _generated(service: TranslationService, cache: AttentionCache, question: Question) -> AsyncIterator[str]:
    """The text that a model generates, as far as it is final; nothing if the question asks for none."""

    def begin() -> Iterator[str]:
        generator, generation = service.registry.model(question.model), dict(question.generation)
        writes = service.registry.find(question.model).ability == "write" and generation.get("max_tokens")
        if not writes or question.target or question.without:  # a stream is interrupted by other questions, which need
            return  # the whole model
        text = ""
        for chunk in generator.stream(question.text, **generation):
            text += chunk.text
            if chunk.whole is not None:
                cache.keep_completion(question, generator, chunk.whole)
            yield text

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


def _examples(pipeline: PipelineEntry) -> list[dict[str, Any]]:
    """The examples of a pipeline or, if it brings none, of the first that reads the same kind of input."""
    fitting = (each for each in (pipeline, *PIPELINES.values()) if each.input == pipeline.input and each.examples)
    owner = next(fitting, None)
    return owner.load(owner.examples)() if owner else []


def _options(text: str) -> dict[str, str]:
    """Further values of a request, a JSON object of texts."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UsageError(f"options is a JSON object of texts, not {text:.60}")
    return found


def _inspect(
    service: TranslationService, info: ModelInfo, given: GivenInput, without: Sequence[str]
) -> tuple[FileRecording, dict[str, Any]]:
    """The attention of a model on a file, and its answer."""
    if info.pipeline.input == IMAGE:
        assert isinstance(given.file, bytes)
        read_image(given.file, given.title)  # an unreadable image is reported by its name
    pipeline = service.registry.model(info.id)
    with without_heads(pipeline, without):
        found = inspect_input(pipeline, given)
    if found is None:
        raise UsageError(f"{info.id} has no view on this page; use `regard look`")
    size = sum(panel.weights.size for panel in found.report.panels)
    if size > MAX_WEIGHTS:
        raise UsageError(
            f"the attention of this input has {size:,} weights; the page shows at most {MAX_WEIGHTS:,}: "
            "draw it with `regard look`"
        )
    return FileRecording(found.report, attention_names(models_of(pipeline)[0])), found.answer
