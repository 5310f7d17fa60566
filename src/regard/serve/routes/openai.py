"""The OpenAI API: models, completions, chats and embeddings, each model doing what it can."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.chat_template import chat_prompt
from regard.errors import UsageError
from regard.inference.pipelines.generation import Writer
from regard.inference.pipelines.images import ImageClassifier
from regard.inference.pipelines.translator import Translator
from regard.inference.pipelines.word_vectors import WordVectors
from regard.serve.http.errors import NotFound
from regard.serve.http.responses import answered, streamed
from regard.serve.models.registry import Exhibit
from regard.serve.models.translation_service import Desk
from regard.serve.routes.libretranslate import ERRORS
from regard.serve.routes.openai_generation import complete_text, embed_texts, stream_text
from regard.serve.routes.openai_schemas import ChatRequest, CompletionRequest, EmbeddingRequest, Prompt
from regard.serve.routes.openai_translation import complete_translation, stream_translation

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

    async def answer(
        request: Request, exhibit: Exhibit, to: str, prompts: list[str], asked: CompletionRequest
    ) -> dict[str, Any] | StreamingResponse:
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

    @router.post("/completions", response_model=None, responses=STREAM)
    async def completions(request: Request, asked: CompletionRequest) -> dict[str, Any] | StreamingResponse:
        exhibit, to = _find(desk, asked.model)
        prompts = await answered(request, _prompts(desk, exhibit, asked.prompt), seconds=seconds)
        if asked.stream and len(prompts) > 1:
            raise UsageError("a stream carries one prompt; send the others by themselves")
        return await answer(request, _writing(exhibit), to, prompts, asked)

    @router.post("/chat/completions", response_model=None, responses=STREAM)
    async def chat(request: Request, asked: ChatRequest) -> dict[str, Any] | StreamingResponse:
        """A translator translates the last message of the user; a language model answers by its chat template."""
        exhibit, to = _find(desk, asked.model)
        prompt = await answered(request, _chat_prompt(desk, _writing(exhibit), asked), seconds=seconds)
        return await answer(request, exhibit, to, [prompt], asked.completion(prompt))

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
    """The model of a name as `/v1/models` lists it, and its target language."""
    exhibits = desk.shelf.exhibits()
    for exhibit in exhibits:
        targets = {f"{exhibit.id}:{target}": target for target in exhibit.targets}
        if name in targets:
            return exhibit, targets[name]
        if name == exhibit.id and len(targets) > 1:
            raise UsageError(f"{name} translates into several languages; say which: {' or '.join(targets)}")
        if name == exhibit.id:
            return exhibit, next(iter(exhibit.targets), "")
    known = [name for exhibit in exhibits for name in _names(exhibit)]
    raise NotFound(f"there is no model {name!r}; there are: {', '.join(known) or 'none yet'}")


def _writing(exhibit: Exhibit) -> Exhibit:
    """The model, if it answers in words."""
    if exhibit.ability == "embed":
        raise UsageError(f"{exhibit.id} makes vectors of texts and completes none; ask /v1/embeddings")
    if exhibit.ability == "see":
        raise UsageError(f"{exhibit.id} looks at pictures and reads no texts; ask it on the page")
    return exhibit


async def _chat_prompt(desk: Desk, exhibit: Exhibit, asked: ChatRequest) -> str:
    """What a model is to complete: for a translator the last message of the user, for others the whole chat."""
    messages = asked.spoken()
    if exhibit.ability == "translate":
        said = [message["content"] for message in messages if message["role"] == "user"]
        if not said:
            raise UsageError("there is no message of the role user, which is what a translator answers")
        return desk.checked(said[-1:])[0]
    desk.checked(["\n".join(message["content"] for message in messages)])
    spoken = [{**message, "content": well_formed(message["content"])} for message in messages]

    def rendered() -> str:
        return chat_prompt(cast(Writer, desk.shelf.model(exhibit.id)).tokenizer.files, spoken)

    return await desk.engine.run(rendered)


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
