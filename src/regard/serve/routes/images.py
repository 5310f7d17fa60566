"""Pictures for the page: what a model takes one for, and where it looks, a layer at a time."""

from __future__ import annotations

import base64
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any
from uuid import uuid4

import numpy as np
from fastapi import APIRouter, Form, Request, UploadFile
from pydantic import BaseModel, ConfigDict

from regard.attention.record import attention_names
from regard.data.images.reading import png, read_image
from regard.data.synthetic.shapes import scenes
from regard.errors import UsageError
from regard.inference.pipelines.images import ImageClassifier, PictureAttention
from regard.look.page import quantise
from regard.look.pictures import described, sight_of
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import wait_for_result
from regard.serve.models.attention_cache import encoded
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.libretranslate import ERRORS

KEPT = 256 * 2**20  # bytes of recorded weights
LARGEST = 64 * 2**20  # of one picture
EXAMPLES, EXAMPLE_SIDE = 6, 256


class LayerRequest(BaseModel):
    """Which layer of which picture."""

    model_config = ConfigDict(extra="forbid")

    id: str
    layer: int


class Example(BaseModel):
    """A built-in picture for whoever has none at hand: its PNG in base64, and what is in it."""

    caption: str
    data: str


@dataclass(frozen=True)
class Seen:
    """One picture that was looked at: what to tell of it, and the weights of every layer as bytes."""

    description: dict[str, Any]
    weights: list[np.ndarray]

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.weights)


class Gallery:
    """The pictures that were looked at last; old ones leave when their weights take too much memory."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, Seen] = OrderedDict()

    def add(self, seen: Seen) -> str:
        name = uuid4().hex
        self._seen[name] = seen
        while sum(each.nbytes for each in self._seen.values()) > KEPT and len(self._seen) > 1:
            self._seen.popitem(last=False)
        return name

    def layer(self, name: str, number: int) -> np.ndarray:
        if name not in self._seen or not 0 <= number < len(self._seen[name].weights):
            raise NotFoundError("that picture is not kept any more; look at it again")
        return self._seen[name].weights[number]


def picture_router(service: TranslationService) -> APIRouter:
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    seconds, gallery = service.settings.seconds, Gallery()

    @router.post("/picture")
    async def picture(request: Request, file: UploadFile, model: Annotated[str, Form()] = "") -> dict[str, Any]:
        info = service.registry.find(model)
        if info.ability != "see":
            raise UsageError(f"{info.id} does not look at pictures")
        content, title = await file.read(), file.filename or "picture"

        def see() -> dict[str, Any]:
            seen, labels = _seen(service.registry.classifier(info.id), content, title)
            return {"id": gallery.add(seen), "labels": labels, "sight": seen.description}

        return await wait_for_result(request, service.engine.run(see), seconds=seconds)

    @router.get("/picture/examples")
    async def examples() -> list[Example]:
        return _examples()

    @router.post("/picture/layer")
    async def layer(asked: LayerRequest) -> dict[str, Any]:
        return encoded(gallery.layer(asked.id, asked.layer))

    return router


@cache
def _examples() -> list[Example]:
    drawn = scenes(part="test", count=EXAMPLES, seed=1, size=EXAMPLE_SIDE)
    return [Example(caption=each.caption, data=base64.b64encode(png(each.pixels)).decode()) for each in drawn]


def _seen(classifier: ImageClassifier, content: bytes, title: str) -> tuple[Seen, dict[str, float]]:
    image = read_image(content, title)
    (answer,) = classifier.classify(image)
    if attention_names(classifier.model):
        looked = classifier.attention(image)
    else:
        looked = PictureAttention(classifier.shown(image), [])
    size = sum(layer.weights.size for layer in looked.layers)
    if size > LARGEST:
        raise UsageError(
            f"the attention of this picture has {size:,} weights; the page shows at most {LARGEST:,}: "
            "draw it with `regard look`"
        )
    sight = sight_of(looked, title=title, model=classifier.name, meta={})
    return Seen(described(sight), [quantise(layer.weights) for layer in looked.layers]), answer.labels
