"""Documents on the page: sent, translated while the page is told how far it is, and fetched."""

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
from regard.serve.http.fields import read_fields, required, uploaded
from regard.serve.http.responses import streamed
from regard.serve.jobs.files import TranslatedFiles
from regard.serve.jobs.spool import Spool
from regard.serve.models.registry import Exhibit
from regard.serve.models.translation_service import AT_ONCE, Desk
from regard.serve.routes.libretranslate import AUTO, ERRORS, detect_document
from regard.serve.routes.page import sent_events

OFTEN = 0.4  # seconds between two words on how far it is
FORM_SCHEMA = {
    "type": "object",
    "required": ["file", "source", "to"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        **{field: {"type": "string"} for field in ("source", "to", "model")},
    },
}


def documents_router(desk: Desk, spool: Spool) -> APIRouter:
    """The routes of the page's Documents tab."""
    router = APIRouter(prefix="/api", tags=["Lens"], responses={**ERRORS, 401: ERRORS[403]})
    files = TranslatedFiles(spool)

    @router.post(
        "/documents",
        response_class=StreamingResponse,
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}},
    )
    async def translate(request: Request) -> StreamingResponse:
        """Events that say how far it is; the last has the token by which the translated document is fetched."""
        told = _translated(desk, files, await read_fields(request))
        return await streamed(request, sent_events(told), seconds=desk.settings.seconds)

    @router.get("/documents/{token}", response_class=FileResponse)
    def fetch(token: str) -> FileResponse:
        path, name = files.find(token)
        return FileResponse(path, filename=name, media_type="application/octet-stream")

    return router


class Counting:
    """A translator that takes a few texts at a time and knows how many it has done."""

    def __init__(self, translate: Translate) -> None:
        self.translate, self.done = translate, 0

    def __call__(self, texts: list[str]) -> list[str | Translated]:
        answers: list[str | Translated] = []
        for first in range(0, len(texts), AT_ONCE):
            answers += self.translate(texts[first : first + AT_ONCE])
            self.done += len(texts[first : first + AT_ONCE])
        return answers


async def _translated(desk: Desk, files: TranslatedFiles, given: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
    upload, source, to = uploaded(given, "file"), required(given, "source"), required(given, "to")
    path = await run_in_threadpool(files.keep, upload.name, upload.content)
    if source == AUTO and not given.get("model"):
        found = await run_in_threadpool(detect_document, desk, files, path, to)
        source = found.language
        yield {"detected": found._asdict()}
        if same_language(source, to):
            yield {"done": True, "token": files.unchanged(path), "unchanged": True}
            return
    exhibit, to = _model(desk, str(given.get("model") or ""), source, to)
    if not desk.shelf.is_loaded(exhibit.id):
        yield {"loading": exhibit.id}
    async for event in _progress(desk, files, path, exhibit, to):
        yield event


def _model(desk: Desk, name: str, source: str, to: str) -> tuple[Exhibit, str]:
    if not name:
        return desk.choose(source, to)
    exhibit = desk.shelf.find(name)
    return exhibit, desk.target(exhibit, to)


async def _progress(
    desk: Desk, files: TranslatedFiles, path: Path, exhibit: Exhibit, to: str
) -> AsyncIterator[dict[str, Any]]:
    """Translate a document aside, and say how far it is until it is done."""
    everything = Counting(lambda texts: texts)  # tells how much there is, and whether the document can be read at all
    await run_in_threadpool(files.translate, path, everything, exhibit.source, to)
    counting: Counting | None = None

    def work(translate: Translate) -> str:
        nonlocal counting
        counting = Counting(translate)
        return files.translate(path, counting, exhibit.source, to)

    task = asyncio.ensure_future(desk.aside(exhibit, to, work))
    try:
        while not task.done():
            yield {"sentences": counting.done if counting else 0, "of": everything.done}
            await asyncio.wait({task}, timeout=OFTEN)
        token, truncated = task.result()
        yield {"done": True, "token": token, "model": exhibit.id, "truncated": truncated}
    finally:
        task.cancel()
