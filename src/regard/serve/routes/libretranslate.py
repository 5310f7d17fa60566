"""The LibreTranslate API, used by `libretranslatepy`, `deep-translator` and editor plugins."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse

from regard.data.formats.languages import language_name, same_language, styled
from regard.data.tokenizers.unknown_words import UnknownWord
from regard.documents.language_id import Detected
from regard.documents.translate import SUFFIXES
from regard.errors import DataError, UsageError
from regard.families.translation.glossary import Glossary
from regard.families.translation.quality import Assessment
from regard.serve.http.fields import (
    optional_flag,
    optional_glossary,
    optional_integer,
    read_fields,
    required_file,
    required_text,
    required_texts,
)
from regard.serve.http.guard import ApiKeys, bearer_key
from regard.serve.http.responses import ERRORS, ForbiddenError, wait_for_result
from regard.serve.jobs.comparison import SUGGESTIONS
from regard.serve.jobs.temp_folders import DocumentFiles, ServerTempFolder
from regard.serve.models.batching import AskedSettings
from regard.serve.models.translation_service import TranslationService, html_text

AUTO = "auto"  # as source language: detect it
MAX_SUGGESTIONS = 16 * 2**20  # bytes of their file
NOT_ASSESSED: dict[str, Any] = {"quality": None, "doubts": [], "flags": []}  # of a text that needs no translation
TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TERMS = {"type": "object", "additionalProperties": TEXT}
TEXTS = {"oneOf": [TEXT, {"type": "array", "items": TEXT}]}


def _body(**properties: Any) -> dict[str, Any]:
    """The OpenAPI description of fields that may be sent as JSON or as a form."""
    schema = {"type": "object", "properties": {**properties, "api_key": TEXT}}
    kinds = ("application/json", "application/x-www-form-urlencoded")
    return {"requestBody": {"content": {kind: {"schema": schema} for kind in kinds}}}


def libre_router(service: TranslationService, keys: ApiKeys, folder: Path, temp_folder: ServerTempFolder) -> APIRouter:
    """The routes; `folder` keeps suggested translations, `temp_folder` the uploaded documents."""
    router = APIRouter(tags=["LibreTranslate"], responses=ERRORS)
    settings, files = service.settings, DocumentFiles(temp_folder)

    async def fields(request: Request) -> dict[str, Any]:
        given = await read_fields(request)
        if not keys.accept(str(given.get("api_key") or "") or bearer_key(request.headers)):
            raise ForbiddenError("Invalid API key")
        return given

    @router.post(
        "/translate",
        openapi_extra=_body(
            q=TEXTS,
            source=TEXT,
            target=TEXT,
            format=TEXT,
            alternatives=NUMBER,
            glossary={"oneOf": [TEXT, TERMS]},
            quality={"type": "boolean"},
            style=TEXT,
        ),
    )
    async def translate(request: Request) -> dict[str, Any]:
        given = await fields(request)
        found, several = required_texts(given)
        found = service.check_limits(found)
        source, target = required_text(given, "source"), required_text(given, "target")
        target = styled(target, str(given.get("style") or ""))  # not part of LibreTranslate's API
        form, count = str(given.get("format") or "text"), optional_integer(given, "alternatives", settings.alternatives)
        detected = await run_in_threadpool(_detect, service, found, target, form) if source == AUTO else []
        sources = [each["language"] for each in detected] or [source] * len(found)
        asked_quality = optional_flag(given, "quality")
        if asked_quality and form != "text":
            raise UsageError("quality is estimated for texts: leave out format, or quality")
        work = _translate_all(service, found, sources, target, form, count, optional_glossary(given), asked_quality)
        answers = await wait_for_result(request, work, seconds=settings.seconds)
        values: dict[str, list[Any]] = {"translatedText": [each.text for each in answers]}
        if detected:
            values["detectedLanguage"] = detected
        if count:
            values["alternatives"] = [each.others for each in answers]
        if asked_quality:  # not part of LibreTranslate's API
            told = [each.assessment.to_json() if each.assessment else NOT_ASSESSED for each in answers]
            values |= {name: [each[name] for each in told] for name in NOT_ASSESSED}
        if any(each.pivot for each in answers):  # not part of LibreTranslate's API
            values["pivot"] = [each.pivot for each in answers]
        if any(each.truncated for each in answers):  # not part of LibreTranslate's API
            values["truncated"] = [each.truncated for each in answers]
        if any(each.unknown for each in answers):  # not part of LibreTranslate's API
            values["unknown"] = [[word.to_json() for word in each.unknown] for each in answers]
        return values if several else {name: each[0] for name, each in values.items()}

    @router.post("/detect", openapi_extra=_body(q=TEXTS))
    async def detect(request: Request) -> list[Any]:
        """The languages that a text may be in, best first; a list of such lists for a list of texts."""
        found, several = required_texts(await fields(request))
        found = service.check_limits(found)
        told = await run_in_threadpool(
            lambda: [[_confidence(each) for each in service.languages.detect_language(text)] for text in found]
        )
        return told if several else told[0]

    @router.api_route("/languages", methods=["GET"])
    @router.api_route("/languages", methods=["POST"], include_in_schema=False)  # libretranslatepy uses POST
    def languages() -> list[dict[str, Any]]:
        # Every source language with its targets, also those through a pivot, then languages that are targets only
        sources = dict.fromkeys(code for info in service.registry.translation_models() for code in info.sources)
        targets = {source: service.languages.reachable_targets(source) for source in sources}
        for target_only in [target for known in list(targets.values()) for target in known]:
            targets.setdefault(target_only, [])
        return [{"code": code, "name": language_name(code), "targets": known} for code, known in targets.items()]

    @router.post(
        "/translate_file",
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": {
            "type": "object", "required": ["file", "source", "target"],
            "properties": {
                "file": {**TEXT, "format": "binary"}, "source": TEXT, "target": TEXT, "glossary": TEXT,
                "replace": {"type": "boolean"}, "api_key": TEXT,
            },
        }}}}},
    )  # fmt: skip
    async def translate_file(request: Request) -> dict[str, Any]:
        given = await fields(request)
        upload, source = required_file(given, "file"), required_text(given, "source")
        target, glossary = required_text(given, "target"), optional_glossary(given)
        path, told = files.save(upload.name, upload.content), dict[str, Any]()
        if source == AUTO:
            found = await run_in_threadpool(detect_document, service, files, path, target)
            source, told["detectedLanguage"] = found.language, _confidence(found)
        if told and same_language(source, target):
            token = files.copy_unchanged(path)
        else:
            replace = optional_flag(given, "replace")
            route = service.languages.find_route(source, target)
            reads, to = route[0][0].source, route[-1][1]
            work = service.run_document(
                route, lambda translate: files.translate(path, translate, reads, to, replace=replace), glossary
            )
            done, truncated = await wait_for_result(request, work, seconds=settings.seconds)
            token, told = done.token, told | {"kept": done.kept, "new": done.new}
            told |= {"truncated": True} if truncated else {}
        return {"translatedFileUrl": str(request.url_for("download_file", token=token)), **told}

    @router.get("/download_file/{token}")
    def download_file(token: str) -> FileResponse:
        path, name = files.find(token)
        return FileResponse(path, filename=name, media_type="application/octet-stream")

    @router.post("/suggest", openapi_extra=_body(q=TEXT, s=TEXT, source=TEXT, target=TEXT))
    async def suggest(request: Request) -> dict[str, bool]:
        given = await fields(request)
        row = {name: service.check_limits([required_text(given, name)])[0] for name in ("q", "s", "source", "target")}
        await run_in_threadpool(_save_suggestion, folder / SUGGESTIONS, row)
        await run_in_threadpool(service.memory.correct, row["source"], row["target"], row["q"], row["s"])
        return {"success": True}

    @router.get("/frontend/settings")
    def frontend_settings() -> dict[str, Any]:
        return _frontend(service, keys)

    return router


class Answer(NamedTuple):
    """A translated text, its alternatives, whether a limit cut it, the source words unknown to the model, if asked for
    its estimated quality, and the pivot language between source and target if no model has both."""

    text: str
    others: list[str]
    truncated: bool = False
    unknown: Sequence[UnknownWord] = ()
    assessment: Assessment | None = None
    pivot: str | None = None


async def _translate_all(
    service: TranslationService,
    found: list[str],
    sources: list[str],
    target: str,
    form: str,
    count: int,
    glossary: Glossary,
    quality: bool,
) -> list[Answer]:
    """Translate every text, with alternatives; texts of one source language are translated together."""
    if form not in ("text", "html"):
        raise UsageError(f"format is {form!r}; it is text or html")
    answers = [Answer(text, []) for text in found]

    async def translate(source: str) -> None:
        places = [place for place, language in enumerate(sources) if language == source]
        chosen = [found[place] for place in places]
        route = service.languages.find_route(source, target)
        if form == "html":
            pages, truncated = await service.translate_html(route, chosen, glossary)
            unknown = await service.unknown_in_html(route[0][0], chosen)
            translated = [Answer(page, [], truncated, words) for page, words in zip(pages, unknown, strict=True)]
        else:
            asked = AskedSettings(n_best=count + 1 if count else None)
            answers_here = await service.translate_along(route, chosen, asked, glossary)
            judged = await service.assess(answers_here) if quality else [None] * len(answers_here)
            translated = [
                Answer(each.text, each.alternatives(count), each.truncated, each.unknown, assessment)
                for each, assessment in zip(answers_here, judged, strict=True)
            ]
        pivot = route[0][1] if len(route) > 1 else None
        for place, answer in zip(places, translated, strict=True):
            answers[place] = answer._replace(pivot=pivot)

    # Texts that are in the target language already stay unchanged.
    await asyncio.gather(*(translate(source) for source in {*sources} if not same_language(source, target)))
    return answers


def _detect(service: TranslationService, found: list[str], target: str, form: str) -> list[dict[str, Any]]:
    """The language of each text; of HTML, without its markup."""
    plain = found
    if form == "html":
        source = service.languages.source_languages(target)[0]
        plain = [html_text(page, source) for page in found]
    return [_confidence(service.languages.detect_language(text, target)[0]) for text in plain]


def detect_document(service: TranslationService, files: DocumentFiles, path: Path, target: str) -> Detected:
    """The language of a document, among those that some model translates into the target."""
    sources = service.languages.source_languages(target)
    for source in sources:
        try:
            return service.languages.detect_language(files.extract_text(path, source, target), target)[0]
        except DataError:  # such as an XLIFF file that declares another source language
            if source == sources[-1]:
                raise
    raise UsageError(f"{target} is not supported")


def _confidence(found: Detected) -> dict[str, Any]:
    return {"confidence": round(found.confidence, 2), "language": found.language}


def _frontend(service: TranslationService, keys: ApiKeys) -> dict[str, Any]:
    infos = service.registry.translation_models()
    pair = (infos[0].source, infos[0].targets[0]) if infos else ("", "")
    source, target = ({"code": code, "name": language_name(code)} if code else None for code in pair)
    return {
        "apiKeys": bool(keys),
        "keyRequired": bool(keys),
        "charLimit": service.settings.characters,
        "batchLimit": service.settings.texts,
        "frontendTimeout": 500,
        "suggestions": True,
        "filesTranslation": True,
        "supportedFilesFormat": list(SUFFIXES),
        "language": {"source": source, "target": target},
    }


def _save_suggestion(file: Path, row: dict[str, str]) -> None:
    """Append a suggested translation to a file, as data for training."""
    if file.exists() and file.stat().st_size > MAX_SUGGESTIONS:
        raise ForbiddenError("this server's file of suggestions is full")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(row, ensure_ascii=False) + "\n")
