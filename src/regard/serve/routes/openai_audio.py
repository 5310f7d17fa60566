"""The OpenAI API of transcriptions: an audio file in, a text, subtitles or segments with their times out."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Request, UploadFile
from starlette.responses import JSONResponse, PlainTextResponse, Response

from regard.data.formats.languages import language_name
from regard.documents.subtitles import Cue, write_srt, write_vtt
from regard.errors import DataError, UsageError
from regard.families.loading import models_that
from regard.families.speech.pipeline import DIGITS, TranscribeOptions, Transcriber, Transcript
from regard.serve.http.responses import wait_for_result
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import TranslationService
from regard.serve.routes.libretranslate import ERRORS
from regard.serve.routes.openai import find_model

Format = Literal["json", "text", "srt", "verbose_json", "vtt"]
GRANULARITIES = "timestamp_granularities[]"
FIELDS = {"file", "model", "language", "prompt", "response_format", "temperature", GRANULARITIES}
MAX_TEMPERATURE = 1.0


def audio_router(service: TranslationService) -> APIRouter:
    router = APIRouter(prefix="/v1/audio", tags=["OpenAI"], responses={**ERRORS, 401: ERRORS[403]})

    @router.post("/transcriptions", response_model=None)
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
        found = await wait_for_result(request, work, seconds=service.settings.seconds)
        return _response(found, response_format, temperature, words=words)

    return router


async def _transcribe(
    service: TranslationService, info: ModelInfo, content: bytes, name: str, options: TranscribeOptions, heat: float
) -> Transcript:
    """The transcript of a file, one batch of pieces after another, so that other requests wait for one batch only."""

    def begin() -> Iterator[Transcript | DataError | None]:
        model: Any = service.registry.model(info.id)
        assert isinstance(model, Transcriber)
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
