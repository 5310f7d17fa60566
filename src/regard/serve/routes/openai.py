"""The OpenAI API: models, completions, chat completions and embeddings. `openai_audio.py` has transcriptions."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.chat_template import chat_prompt
from regard.errors import UsageError
from regard.inference.pipelines.catalog import TEXT
from regard.inference.pipelines.text_encoder import TextEncoder
from regard.inference.pipelines.text_generator import TextGenerator
from regard.inference.pipelines.translator import Translator
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import stream_events, wait_for_result
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.libretranslate import ERRORS
from regard.serve.routes.openai_generation import complete_text, embed_texts, stream_text
from regard.serve.routes.openai_schemas import ChatRequest, CompletionRequest, EmbeddingRequest, Prompt
from regard.serve.routes.openai_translation import complete_translation, stream_translation

STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
UNSUPPORTED = ("suffix",)  # options that no model supports
UNSUPPORTED_BY_TRANSLATORS = ("echo", "logit_bias", "presence_penalty", "frequency_penalty")


def openai_router(service: TranslationService) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"], responses={**ERRORS, 401: ERRORS[403]})
    created, seconds = int(time.time()), service.settings.seconds

    @router.get("/models")
    def models() -> dict[str, Any]:
        names = [name for info in service.registry.infos() for name in _names(info)]
        return {"object": "list", "data": [_model(name, created) for name in names]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        find_model(service, name)
        return _model(name, created)

    async def answer(
        request: Request, info: ModelInfo, to: str, prompts: list[str], body: CompletionRequest
    ) -> dict[str, Any] | StreamingResponse:
        translates = info.ability == "translate"
        body.check(*UNSUPPORTED, *(UNSUPPORTED_BY_TRANSLATORS if translates else ()))
        if body.stream:
            stream = (
                stream_translation(service, info, to, prompts[0], body)
                if translates
                else stream_text(service, info, prompts[0], body)
            )
            return await stream_events(request, stream, seconds=seconds)
        whole = (
            complete_translation(service, info, to, prompts, body)
            if translates
            else complete_text(service, info, prompts, body)
        )
        return await wait_for_result(request, whole, seconds=seconds)

    @router.post("/completions", response_model=None, responses=STREAM)
    async def completions(request: Request, body: CompletionRequest) -> dict[str, Any] | StreamingResponse:
        info, to = find_model(service, body.model)
        prompts = await wait_for_result(request, _prompts(service, info, body.prompt), seconds=seconds)
        if body.stream and len(prompts) > 1:
            raise UsageError("a stream takes one prompt; send the others in requests of their own")
        return await answer(request, _check_generates(info), to, prompts, body)

    @router.post("/chat/completions", response_model=None, responses=STREAM)
    async def chat(request: Request, body: ChatRequest) -> dict[str, Any] | StreamingResponse:
        """A translator translates the user's last message; a language model completes its chat template."""
        info, to = find_model(service, body.model)
        prompt = await wait_for_result(request, _chat_prompt(service, _check_generates(info), body), seconds=seconds)
        return await answer(request, info, to, [prompt], body.completion(prompt))

    @router.post("/embeddings")
    async def embeddings(request: Request, body: EmbeddingRequest) -> dict[str, Any]:
        info, _ = find_model(service, body.model)
        texts = await wait_for_result(request, _prompts(service, info, body.input), seconds=seconds)
        return await wait_for_result(request, embed_texts(service, info, texts, body), seconds=seconds)

    return router


def _names(info: ModelInfo) -> list[str]:
    """A model with several target languages is listed once for each, as `name:es`: completions have no target field."""
    several = len(info.targets) > 1
    return [f"{info.id}:{target}" for target in info.targets] if several else [info.id]


def find_model(service: TranslationService, name: str) -> tuple[ModelInfo, str]:
    """The model of a name from `/v1/models`, and its target language."""
    infos = service.registry.infos()
    for info in infos:
        targets = {f"{info.id}:{target}": target for target in info.targets}
        if name in targets:
            return info, targets[name]
        if name == info.id and len(targets) > 1:
            raise UsageError(f"{name} translates into several languages; say which: {' or '.join(targets)}")
        if name == info.id:
            return info, next(iter(info.targets), "")
    known = [name for info in infos for name in _names(info)]
    raise NotFoundError(f"there is no model {name!r}; there are: {', '.join(known) or 'none yet'}")


def _check_generates(info: ModelInfo) -> ModelInfo:
    """The model; raises an error if it does not generate text."""
    if info.ability == "embed":
        raise UsageError(f"{info.id} makes vectors of texts and completes none; ask /v1/embeddings")
    if info.pipeline.input != TEXT:
        raise UsageError(f"{info.id} {_reads_files(info)}")
    return info


async def _chat_prompt(service: TranslationService, info: ModelInfo, body: ChatRequest) -> str:
    """The prompt of a chat: for a translator the user's last message, for others the rendered chat template."""
    messages = body.plain_messages()
    if info.ability == "translate":
        user_texts = [message["content"] for message in messages if message["role"] == "user"]
        if not user_texts:
            raise UsageError("there is no message with the role user, which is what a translator translates")
        return service.check_limits(user_texts[-1:])[0]
    service.check_limits(["\n".join(message["content"] for message in messages)])
    cleaned = [{**message, "content": well_formed(message["content"])} for message in messages]

    def render() -> str:
        return chat_prompt(cast(TextGenerator, service.registry.model(info.id)).tokenizer.files, cleaned)

    return await service.engine.run(render)


def _reads_files(info: ModelInfo) -> str:
    """What a model does that reads no texts, and where to ask it."""
    if info.ability == "transcribe":
        return "transcribes audio and reads no texts; ask /v1/audio/transcriptions"
    return "looks at files and reads no texts; ask it on the page"


def _model(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "regard"}


async def _prompts(service: TranslationService, info: ModelInfo, prompt: Prompt) -> list[str]:
    """The prompts as texts; token ids are decoded with the model's tokenizer, of a translator its source side."""
    if info.pipeline.input != TEXT:
        raise UsageError(f"{info.id} {_reads_files(info)}")
    given: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    if not given:
        raise UsageError("prompt is empty; give a text, or a list of texts")

    def decode() -> list[str]:
        model = service.registry.model(info.id)
        if not isinstance(model, Translator | TextGenerator | TextEncoder):
            raise UsageError(f"{info.id} knows words, not token ids; give texts")
        source = model.tokenizer.source if isinstance(model, Translator) else model.tokenizer
        for ids in given:
            if not all(0 <= each < source.size for each in ids):
                raise UsageError(f"prompt has a token outside 0 to {source.size - 1}")
        return [source.decode(ids) for ids in given]

    return service.check_limits(given if isinstance(given[0], str) else await service.engine.run(decode))
