"""Models that read files, for the page: their answers, and the attention of each of their layers.

One route serves every modality: the view of the model's pipeline makes the report and the answer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import BaseModel, ConfigDict

from regard.attention.record import attention_names
from regard.data.images.reading import read_image
from regard.errors import UsageError
from regard.families.catalog import PIPELINES
from regard.families.contract import IMAGE, TEXT, PipelineEntry
from regard.look.given import GivenInput, inspect_input
from regard.look.interventions import models_of, without_heads
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import wait_for_result
from regard.serve.models.attention_cache import AttentionCache, FileRecording
from regard.serve.models.attention_pieces import encode
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.attention import MAX_HEADS
from regard.serve.routes.libretranslate import ERRORS

MAX_WEIGHTS = 64 * 2**20  # of one input


class LayerRequest(BaseModel):
    """A layer of an input, by the id of the input and the number of the layer."""

    model_config = ConfigDict(extra="forbid")

    id: str
    layer: int


class NeuronsRequest(BaseModel):
    """A query and a key of a head of an input, by the id of the input and the number of the panel."""

    model_config = ConfigDict(extra="forbid")

    id: str
    panel: int
    head: int
    query: int
    key: int


def inspect_router(service: TranslationService, attention_cache: AttentionCache) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds = service.settings.seconds

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
            attention_cache.keep(key, recording)
            return {"id": key, "answer": answer, "report": recording.description, "without": without}

        return await wait_for_result(request, service.engine.run(compute), seconds=seconds)

    @router.get("/inspect/examples")
    async def examples(model: str = "") -> list[dict[str, Any]]:
        """Built-in inputs to try a model with."""
        return _examples(service.registry.find(model).pipeline)

    @router.post("/inspect/layer")
    async def layer(asked: LayerRequest) -> dict[str, Any]:
        recording = attention_cache.find(asked.id)
        maps = list(recording.maps.values()) if isinstance(recording, FileRecording) else []
        if not 0 <= asked.layer < len(maps):
            raise NotFoundError("that input is not kept any more; look at it again")
        return encode(maps[asked.layer])

    @router.post("/inspect/neurons")
    async def neurons(asked: NeuronsRequest) -> dict[str, Any] | None:
        """The score of a query and a key, dimension by dimension; null if none are known, or the two do not meet."""
        recording = attention_cache.find(asked.id)
        known = recording.neurons if isinstance(recording, FileRecording) else []
        if not 0 <= asked.panel < len(known):
            raise NotFoundError("that input is not kept any more; look at it again")
        layer = known[asked.panel]
        found = None if layer is None else layer.at(asked.head, asked.query, asked.key)
        return None if found is None else found.to_json()

    return router


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
