"""Images for the page: the classes that a model finds, and the attention of each of its layers."""

from __future__ import annotations

import base64
from functools import cache
from typing import Annotated, Any
from uuid import uuid4

from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import BaseModel, ConfigDict

from regard.attention.record import attention_names
from regard.data.images.reading import png, read_image
from regard.data.synthetic.shapes import scenes
from regard.errors import UsageError
from regard.inference.pipelines.images import ImageAttention, ImageClassifier
from regard.look.adapters.images import image_report
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import wait_for_result
from regard.serve.models.attention_cache import AttentionCache, ImageRecording
from regard.serve.models.attention_pieces import encode
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.libretranslate import ERRORS

MAX_WEIGHTS = 64 * 2**20  # of one image
EXAMPLES, EXAMPLE_SIDE = 6, 256


class LayerRequest(BaseModel):
    """A layer of an image, by the id of the image and the number of the layer."""

    model_config = ConfigDict(extra="forbid")

    id: str
    layer: int


class Example(BaseModel):
    """A built-in image to try a model with: its PNG in base64, and a caption."""

    caption: str
    data: str


def images_router(service: TranslationService, attention_cache: AttentionCache) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds = service.settings.seconds

    @router.post("/picture")
    async def picture(request: Request, file: UploadFile, model: Annotated[str, Form()] = "") -> dict[str, Any]:
        info = service.registry.find(model)
        if info.ability != "see":
            raise UsageError(f"{info.id} does not look at pictures")
        content, title = await file.read(), file.filename or "picture"

        def compute() -> dict[str, Any]:
            recording, labels = _inspect(service.registry.classifier(info.id), content, title)
            key = uuid4().hex
            attention_cache.keep(key, recording)
            return {"id": key, "labels": labels, "sight": recording.description}

        return await wait_for_result(request, service.engine.run(compute), seconds=seconds)

    @router.get("/picture/examples")
    async def examples() -> list[Example]:
        return _examples()

    @router.post("/picture/layer")
    async def layer(asked: LayerRequest) -> dict[str, Any]:
        recording = attention_cache.find(asked.id)
        maps = list(recording.maps.values()) if isinstance(recording, ImageRecording) else []
        if not 0 <= asked.layer < len(maps):
            raise NotFoundError("that picture is not kept any more; look at it again")
        return encode(maps[asked.layer])

    return router


@cache
def _examples() -> list[Example]:
    drawn = scenes(part="test", count=EXAMPLES, seed=1, size=EXAMPLE_SIDE)
    return [Example(caption=each.caption, data=base64.b64encode(png(each.pixels)).decode()) for each in drawn]


def _inspect(classifier: ImageClassifier, content: bytes, title: str) -> tuple[ImageRecording, dict[str, float]]:
    """The attention of a model on an image, and the probabilities of its classes."""
    image = read_image(content, title)
    (answer,) = classifier.classify(image)
    if attention_names(classifier.model):
        recorded = classifier.attention(image)
    else:
        recorded = ImageAttention(classifier.shown(image), [])
    size = sum(layer.weights.size for layer in recorded.layers)
    if size > MAX_WEIGHTS:
        raise UsageError(
            f"the attention of this picture has {size:,} weights; the page shows at most {MAX_WEIGHTS:,}: "
            "draw it with `regard look`"
        )
    return ImageRecording(image_report(recorded, title=title, model=classifier.name, meta={})), answer.labels
