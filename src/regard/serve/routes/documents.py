"""Routes of the page's Documents tab: upload and translate a document with progress events, and download it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, StreamingResponse

from regard.data.formats.languages import same_language
from regard.documents.markup import Translate, Translated
from regard.families.translation.glossary import Glossary
from regard.serve.http.events import server_sent_events
from regard.serve.http.fields import optional_glossary, read_fields, required_file, required_text
from regard.serve.http.responses import stream_events
from regard.serve.jobs.document_files import DocumentFiles
from regard.serve.jobs.temp_folders import ServerTempFolder
from regard.serve.models.registry import ModelInfo
from regard.serve.models.translation_service import STREAM_BATCH, TranslationService
from regard.serve.routes.libretranslate import AUTO, ERRORS, detect_document

PROGRESS_INTERVAL = 0.4  # seconds between two progress events
FORM_SCHEMA = {
    "type": "object",
    "required": ["file", "source", "to"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        **{field: {"type": "string"} for field in ("source", "to", "model", "glossary")},
    },
}


def documents_router(service: TranslationService, temp_folder: ServerTempFolder) -> APIRouter:
    """The routes of the page's Documents tab."""
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    files = DocumentFiles(temp_folder)

    @router.post(
        "/documents",
        response_class=StreamingResponse,
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}},
    )
    async def translate(request: Request) -> StreamingResponse:
        """Progress events; the last one has the token for downloading the translated document."""
        events = _translate_upload(service, files, await read_fields(request))
        return await stream_events(request, server_sent_events(events), seconds=service.settings.seconds)

    @router.get("/documents/{token}", response_class=FileResponse)
    def fetch(token: str) -> FileResponse:
        path, name = files.find(token)
        return FileResponse(path, filename=name, media_type="application/octet-stream")

    return router


class CountingTranslator:
    """Wraps a translate function: translates in small batches and counts the finished texts."""

    def __init__(self, translate: Translate) -> None:
        self.translate, self.done = translate, 0

    def __call__(self, texts: list[str]) -> list[str | Translated]:
        answers: list[str | Translated] = []
        for first in range(0, len(texts), STREAM_BATCH):
            answers += self.translate(texts[first : first + STREAM_BATCH])
            self.done += len(texts[first : first + STREAM_BATCH])
        return answers


async def _translate_upload(
    service: TranslationService, files: DocumentFiles, given: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    upload, source, to = required_file(given, "file"), required_text(given, "source"), required_text(given, "to")
    glossary = optional_glossary(given)
    path = await run_in_threadpool(files.save, upload.name, upload.content)
    if source == AUTO and not given.get("model"):
        found = await run_in_threadpool(detect_document, service, files, path, to)
        source = found.language
        yield {"detected": found._asdict()}
        if same_language(source, to):
            yield {"done": True, "token": files.copy_unchanged(path), "unchanged": True}
            return
    info, to = _model(service, str(given.get("model") or ""), source, to)
    if not service.registry.is_loaded(info.id):
        yield {"loading": info.id}
    async for event in _progress(service, files, path, info, to, glossary):
        yield event


def _model(service: TranslationService, name: str, source: str, to: str) -> tuple[ModelInfo, str]:
    if not name:
        return service.languages.find_model(source, to)
    info = service.registry.find(name)
    return info, service.languages.target_language(info, to)


async def _progress(
    service: TranslationService, files: DocumentFiles, path: Path, info: ModelInfo, to: str, glossary: Glossary
) -> AsyncIterator[dict[str, Any]]:
    """Translate a document in a thread, and yield progress events until it is done."""
    total = CountingTranslator(lambda texts: texts)  # counts the texts, and fails early if the document is unreadable
    await run_in_threadpool(files.translate, path, total, info.source, to)
    counting: CountingTranslator | None = None

    def work(translate: Translate) -> str:
        nonlocal counting
        counting = CountingTranslator(translate)
        return files.translate(path, counting, info.source, to)

    task = asyncio.ensure_future(service.run_document([(info, to)], work, glossary))
    try:
        while not task.done():
            yield {"sentences": counting.done if counting else 0, "of": total.done}
            await asyncio.wait({task}, timeout=PROGRESS_INTERVAL)
        token, truncated = task.result()
        yield {"done": True, "token": token, "model": info.id, "truncated": truncated}
    finally:
        task.cancel()
