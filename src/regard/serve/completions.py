"""The OpenAI API: models, completions and embeddings, each model doing what it can."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from regard.errors import UsageError
from regard.inference.images import ImageClassifier
from regard.inference.pipelines import Translator
from regard.inference.words import WordVectors
from regard.serve.answers import answered, streamed
from regard.serve.desk import Desk
from regard.serve.libre import ERRORS
from regard.serve.shapes import CompletionRequest, EmbeddingRequest, Prompt
from regard.serve.shelf import Exhibit
from regard.serve.translating import complete_translation, stream_translation
from regard.serve.writing import complete_text, embed_texts, stream_text

STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
NEVER = ("suffix",)  # no model here can do this
NOT_TRANSLATING = ("echo", "logit_bias", "presence_penalty", "frequency_penalty")  # no translator can do these


def openai_router(desk: Desk) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"], responses={**ERRORS, 401: ERRORS[403]})
    created, seconds = int(time.time()), desk.settings.seconds

    @router.get("/models")
    def models() -> dict[str, Any]:
        names = [name for exhibit in desk.shelf.exhibits() for name in _names(exhibit)]
        return {"object": "list", "data": [_model(name, created) for name in names]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        _find(desk, name)
        return _model(name, created)

    @router.post("/completions", response_model=None, responses=STREAM)
    async def completions(request: Request, asked: CompletionRequest) -> dict[str, Any] | StreamingResponse:
        exhibit, to = _find(desk, asked.model)
        prompts = await answered(request, _prompts(desk, exhibit, asked.prompt), seconds=seconds)
        if asked.stream and len(prompts) > 1:
            raise UsageError("a stream carries one prompt; send the others by themselves")
        if exhibit.ability == "embed":
            raise UsageError(f"{exhibit.id} makes vectors of texts and completes none; ask /v1/embeddings")
        translates = exhibit.ability == "translate"
        asked.check(*NEVER, *(NOT_TRANSLATING if translates else ()))
        if asked.stream:
            stream = (
                stream_translation(desk, exhibit, to, prompts[0], asked)
                if translates
                else stream_text(desk, exhibit, prompts[0], asked)
            )
            return await streamed(request, stream, seconds=seconds)
        whole = (
            complete_translation(desk, exhibit, to, prompts, asked)
            if translates
            else complete_text(desk, exhibit, prompts, asked)
        )
        return await answered(request, whole, seconds=seconds)

    @router.post("/embeddings")
    async def embeddings(request: Request, asked: EmbeddingRequest) -> dict[str, Any]:
        exhibit, _ = _find(desk, asked.model)
        texts = await answered(request, _prompts(desk, exhibit, asked.input), seconds=seconds)
        return await answered(request, embed_texts(desk, exhibit, texts, asked), seconds=seconds)

    return router


def _names(exhibit: Exhibit) -> list[str]:
    """A model of several targets is one model for each, `name:es`, since a completion has no target to choose."""
    several = len(exhibit.targets) > 1
    return [f"{exhibit.id}:{target}" for target in exhibit.targets] if several else [exhibit.id]


def _find(desk: Desk, name: str) -> tuple[Exhibit, str]:
    for exhibit in desk.shelf.exhibits():
        if name == exhibit.id:
            return exhibit, desk.target(exhibit, "") if exhibit.ability == "translate" else ""
        if name in _names(exhibit):
            return exhibit, name.removeprefix(f"{exhibit.id}:")
    return desk.shelf.find(name or "?"), ""


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "regard"}


async def _prompts(desk: Desk, exhibit: Exhibit, prompt: Prompt) -> list[str]:
    """The texts asked for; token ids are those of the model's tokenizer, of a translator's source side."""
    if exhibit.ability == "see":
        raise UsageError(f"{exhibit.id} looks at pictures and reads no texts; ask it on the page")
    given: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    if not given:
        raise UsageError("prompt is empty; give a text, or a list of texts")

    def decoded() -> list[str]:
        model = desk.shelf.model(exhibit.id)
        assert not isinstance(model, ImageClassifier)
        if isinstance(model, WordVectors):
            raise UsageError(f"{exhibit.id} knows words, not token ids; give texts")
        source = model.tokenizer.source if isinstance(model, Translator) else model.tokenizer
        for ids in given:
            if not all(0 <= each < source.size for each in ids):
                raise UsageError(f"prompt has a token outside 0 to {source.size - 1}")
        return [source.decode(ids) for ids in given]

    return desk.checked(given if isinstance(given[0], str) else await desk.engine.run(decoded))
