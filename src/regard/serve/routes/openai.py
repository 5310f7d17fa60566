"""The OpenAI API: models, completions, chat completions and embeddings. `openai_audio.py` has transcriptions."""

from __future__ import annotations

import time
from typing import Any, cast

from fastapi import APIRouter, Request
from starlette.responses import StreamingResponse

from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.chat_template import chat_prompt
from regard.errors import UsageError
from regard.families.contract import TEXT
from regard.families.language.encoder import TextEncoder
from regard.families.language.generator import TextGenerator
from regard.families.translation.translator import Translator
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import stream_events, wait_for_result
from regard.serve.models.language_routes import Route
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
        return {"object": "list", "data": [_model(name, created) for name in _listed(service)]}

    @router.get("/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        find_route(service, name)
        return _model(name, created)

    async def answer(
        request: Request, route: Route, prompts: list[str], body: CompletionRequest
    ) -> dict[str, Any] | StreamingResponse:
        info, _ = route[0]
        translates = info.ability == "translate"
        body.check(*UNSUPPORTED, *(UNSUPPORTED_BY_TRANSLATORS if translates else ()))
        if body.stream:
            stream = (
                stream_translation(service, route, prompts[0], body)
                if translates
                else stream_text(service, info, prompts[0], body)
            )
            return await stream_events(request, stream, seconds=seconds)
        whole = (
            complete_translation(service, route, prompts, body)
            if translates
            else complete_text(service, info, prompts, body)
        )
        return await wait_for_result(request, whole, seconds=seconds)

    @router.post("/completions", response_model=None, responses=STREAM)
    async def completions(request: Request, body: CompletionRequest) -> dict[str, Any] | StreamingResponse:
        route = find_route(service, body.model)
        prompts = await wait_for_result(request, _prompts(service, route[0][0], body.prompt), seconds=seconds)
        if body.stream and len(prompts) > 1:
            raise UsageError("a stream takes one prompt; send the others in requests of their own")
        _check_generates(route[0][0])
        return await answer(request, route, prompts, body)

    @router.post("/chat/completions", response_model=None, responses=STREAM)
    async def chat(request: Request, body: ChatRequest) -> dict[str, Any] | StreamingResponse:
        """A translator translates the user's last message; a language model completes its chat template."""
        route = find_route(service, body.model)
        info = _check_generates(route[0][0])
        prompt = await wait_for_result(request, _chat_prompt(service, info, body), seconds=seconds)
        return await answer(request, route, [prompt], body.completion(prompt))

    @router.post("/embeddings")
    async def embeddings(request: Request, body: EmbeddingRequest) -> dict[str, Any]:
        info = find_model(service, body.model)
        texts = await wait_for_result(request, _prompts(service, info, body.input), seconds=seconds)
        return await wait_for_result(request, embed_texts(service, info, texts, body), seconds=seconds)

    return router


def _names(info: ModelInfo) -> dict[str, str]:
    """The names of a model with their target languages. A model with several is listed once for each, as `name:es`:
    completions have no target field."""
    if len(info.targets) > 1:
        return {f"{info.id}:{target}": target for target in info.targets}
    return {info.id: next(iter(info.targets), "")}


def _pivots(service: TranslationService) -> dict[str, Route]:
    """Pairs of languages that two models translate through a third one, and no model alone, as `first+second`."""
    languages, found = service.languages, dict[str, Route]()
    for source in dict.fromkeys(info.source for info in service.registry.translation_models()):
        for target in languages.reachable_targets(source):
            route = languages.find_route(source, target)
            if len(route) > 1:
                names = (next(name for name, to in _names(info).items() if to == code) for info, code in route)
                found["+".join(names)] = route
    return found


def _listed(service: TranslationService) -> dict[str, Route]:
    """All models, then the pairs of them, by name; a model that has the name of a pair is meant by it."""
    alone: dict[str, Route] = {
        name: [(info, to)] for info in service.registry.infos() for name, to in _names(info).items()
    }
    return alone | {name: route for name, route in _pivots(service).items() if name not in alone}


def find_route(service: TranslationService, name: str) -> Route:
    """The model of a name from `/v1/models` with its target language, or the two models of a pair."""
    listed = _listed(service)
    if name in listed:
        return listed[name]
    for info in service.registry.infos():
        targets = [each for each in listed if each in _names(info)]
        if name == info.id and len(targets) > 1:
            raise UsageError(f"{name} translates into several languages; say which: {' or '.join(targets)}")
        if name in (f"{info.id}:{target}" for target in info.targets):
            return [(info, name.removeprefix(f"{info.id}:"))]
    raise NotFoundError(f"there is no model {name!r}; there are: {', '.join(listed) or 'none yet'}")


def find_model(service: TranslationService, name: str) -> ModelInfo:
    """The model of a name from `/v1/models`, for what one model does alone."""
    route = find_route(service, name)
    if len(route) > 1:
        raise UsageError(f"{name} translates through {route[0][1]} and does nothing else; name one model")
    return route[0][0]


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
