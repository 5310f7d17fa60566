"""The OpenAI API: models, completions, chat completions, embeddings and transcriptions."""

from __future__ import annotations

import time
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Request, UploadFile
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from regard.data.formats.languages import language_name
from regard.data.tokenizers.base import well_formed
from regard.data.tokenizers.chat_template import chat_prompt
from regard.documents.subtitles import Cue, write_srt, write_vtt
from regard.errors import DataError, UsageError
from regard.families.contract import TEXT
from regard.families.loading import models_that
from regard.families.speech.pipeline import DIGITS, TranscribeOptions, Transcriber, Transcript
from regard.serve.http.errors import NotFoundError
from regard.serve.http.responses import keyed_router, stream_events, wait_for_result, with_error_event
from regard.serve.models.registry import ModelInfo, Route
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.openai_answers import (
    complete_text,
    complete_translation,
    embed_texts,
    stream_text,
    stream_translation,
)
from regard.serve.routes.openai_schemas import ChatRequest, CompletionRequest, EmbeddingRequest, Prompt

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
GRANULARITIES = "timestamp_granularities[]"
FIELDS = {"file", "model", "language", "prompt", "response_format", "temperature", GRANULARITIES}
MAX_TEMPERATURE = 1.0
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}
UNSUPPORTED = ("suffix",)  # options that no model supports
UNSUPPORTED_BY_TRANSLATORS = ("echo", "logit_bias", "presence_penalty", "frequency_penalty")


def openai_router(service: TranslationService) -> APIRouter:
    router = keyed_router("/v1", "OpenAI")
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
            return await stream_events(request, _ended(stream), seconds=seconds)
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

    @router.post("/audio/transcriptions", response_model=None)
    async def transcriptions(
        request: Request,
        file: UploadFile,
        model: Annotated[str, Form()],
        language: Annotated[str, Form()] = "",
        prompt: Annotated[str, Form()] = "",
        response_format: Annotated[Format, Form()] = "json",
        temperature: Annotated[float, Form(ge=0, le=MAX_TEMPERATURE)] = 0.0,
        granularities: Annotated[list[Literal["word", "segment"]] | None, Form(alias=GRANULARITIES)] = None,
    ) -> Response:
        """What is said in an audio file (WAV, FLAC, OGG or MP3)."""
        _refuse_unknown({*(await request.form())})
        info = find_model(service, model)
        _check_transcribes(info)
        if granularities and response_format != "verbose_json":
            raise UsageError("timestamp_granularities need response_format verbose_json")
        (prompt,) = service.check_limits([prompt])
        words = "word" in (granularities or ())
        options = TranscribeOptions(
            language=language, prompt=prompt, words=words, timestamps=words or response_format not in ("json", "text")
        )
        content, name = await file.read(), file.filename or "the audio"
        work = _transcribe(service, info, content, name, options, temperature)
        found = await wait_for_result(request, work, seconds=seconds)
        return _response(found, response_format, temperature, words=words)

    return router


async def _ended(events: AsyncIterator[str]) -> AsyncIterator[str]:
    """A stream with the event that ends it, also after an error."""
    async for each in with_error_event("/v1", events):
        yield each
    yield "data: [DONE]\n\n"


def _names(info: ModelInfo) -> dict[str, str]:
    """The names of a model with their target languages. A model with several is listed once for each, as `name:es`:
    completions have no target field."""
    if len(info.targets) > 1:
        return {f"{info.id}:{target}": target for target in info.targets}
    return {info.id: next(iter(info.targets), "")}


def _pivots(service: TranslationService) -> dict[str, Route]:
    """Pairs of languages that two models translate through a third one, and no model alone, as `first+second`."""
    languages, found = service.languages, dict[str, Route]()
    for source in dict.fromkeys(code for info in service.registry.translation_models() for code in info.sources):
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
        return chat_prompt(service.registry.model(info.id).tokenizer.files, cleaned)

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
        if (tokenizer := getattr(service.registry.model(info.id), "tokenizer", None)) is None:
            raise UsageError(f"{info.id} knows words, not token ids; give texts")
        source = tokenizer.source if info.ability == "translate" else tokenizer
        for ids in given:
            if not all(0 <= each < source.size for each in ids):
                raise UsageError(f"prompt has a token outside 0 to {source.size - 1}")
        return [source.decode(ids) for ids in given]

    return service.check_limits(given if isinstance(given[0], str) else await service.engine.run(decode))


async def _transcribe(
    service: TranslationService, info: ModelInfo, content: bytes, name: str, options: TranscribeOptions, heat: float
) -> Transcript:
    """The transcript of a file, one batch of pieces after another, so that other requests wait for one batch only."""

    def begin() -> Iterator[Transcript | DataError | None]:
        model: Transcriber = service.registry.model(info.id)
        own = model.settings.replace(sample=True, temperature=heat) if heat else model.settings
        return model.steps([content], options.replace(settings=own), [name])

    found: Transcript | DataError | None = None
    async for step in service.engine.stream(begin):
        found = step if step is not None else found
    if isinstance(found, DataError):
        raise found
    assert found is not None
    return found


def _refuse_unknown(given: set[str]) -> None:
    if unknown := sorted(given - FIELDS):
        known = ", ".join(sorted(FIELDS))
        raise UsageError(f"{', '.join(unknown)} is not supported here; known are {known}")


def _check_transcribes(info: ModelInfo) -> None:
    if info.ability != "transcribe":
        able = " or ".join(models_that("transcribe"))
        raise UsageError(f"{info.id} does not transcribe audio; name a model of the kind {able}")


def _response(found: Transcript, form: Format, temperature: float, *, words: bool) -> Response:
    cues = [Cue(segment.start, segment.end, segment.text) for segment in found.segments]
    match form:
        case "json":
            return JSONResponse({"text": found.text})
        case "text":
            return PlainTextResponse(found.text + "\n")
        case "srt":
            return PlainTextResponse(write_srt(cues))
        case "vtt":
            return PlainTextResponse(write_vtt(cues), media_type="text/vtt")
    answer: dict[str, Any] = {
        "task": "transcribe",
        "language": language_name(found.language).lower() if found.language else "",
        "duration": round(found.seconds, DIGITS),
        "text": found.text,
        "segments": [_segment(number, each, temperature) for number, each in enumerate(found.segments)],
    }
    if words:
        answer["words"] = [word.to_json() for segment in found.segments for word in segment.words]
    return JSONResponse(answer)


def _segment(number: int, segment: Any, temperature: float) -> dict[str, Any]:
    """A segment under OpenAI's names, as far as it is known."""
    text = segment.text.encode()
    return {
        "id": number,
        "start": round(segment.start, DIGITS),
        "end": round(segment.end, DIGITS),
        "text": segment.text,
        "temperature": temperature,
        "avg_logprob": segment.score,
        "compression_ratio": round(len(text) / len(zlib.compress(text)), 4),
    }
