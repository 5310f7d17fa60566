"""Training over HTTP: the recipes, and the one job of the server."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from regard.config import Config
from regard.errors import UsageError
from regard.serve.jobs import Jobs
from regard.serve.problems import TooLarge
from regard.serve.progress import Job
from regard.serve.recipes import Offer, offers
from regard.serve.uploads import suffix_of

TEXT_FIELDS = ("name", "recipe", "source", "target")
LONGEST_FIELD = 200
MOST_STEPS = 1_000_000
MOST_MINUTES = 7 * 24 * 60
FORM_SCHEMA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "recipe"],
                    "properties": {
                        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": 2},
                        **{field: {"type": "string"} for field in TEXT_FIELDS},
                        "steps": {"type": "integer", "minimum": 1, "maximum": MOST_STEPS},
                        "minutes": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_MINUTES},
                    },
                }
            }
        },
    }
}


class Offers(Config):
    """The recipes to choose from."""

    recipes: list[Offer]


class JobOrNone(Config):
    """The job of the server, if there is one."""

    job: Job | None


def training_router(jobs: Jobs) -> APIRouter:
    """The routes of the page's Train tab; `jobs.limit` bounds what is sent to them."""
    router = APIRouter(prefix="/api", tags=["training"])

    @router.get("/recipes")
    def recipes() -> Offers:
        return Offers(recipes=offers())

    @router.get("/train")
    def current() -> JobOrNone:
        return JobOrNone(job=jobs.current())

    @router.post("/train", status_code=201, openapi_extra=FORM_SCHEMA)
    async def start(request: Request) -> Job:
        form = await _read_form(request, jobs.limit)
        try:
            return await run_in_threadpool(_start, jobs, form)
        finally:
            await form.close()

    @router.post("/train/demo", status_code=201)
    def start_demo() -> Job:
        return jobs.start_demo()

    @router.post("/train/stop")
    def stop() -> Job:
        return jobs.stop()

    @router.post("/train/resume")
    def resume() -> Job:
        return jobs.resume()

    @router.delete("/train")
    def forget() -> JobOrNone:
        jobs.forget()
        return JobOrNone(job=None)

    return router


async def _read_form(request: Request, limit: int) -> FormData:
    """The fields and files of a form; files go to the disk as they come, up to `limit` bytes in all."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise UsageError("the training data must come as multipart/form-data with the field files")
    try:
        return await MultiPartParser(request.headers, _bounded(request, limit), max_files=2, max_fields=20).parse()
    except (MultiPartException, ClientDisconnect) as error:
        raise UsageError(f"the form cannot be read ({error}); send one file, or the two of a pair") from None


async def _bounded(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    came = 0
    async for chunk in request.stream():
        came += len(chunk)
        if came > limit:
            raise TooLarge(f"the training data have more than the {limit:,} bytes that are taken; send less")
        yield chunk


def _start(jobs: Jobs, form: FormData) -> Job:
    name, recipe, source, target = (_text(form, field) for field in TEXT_FIELDS)
    uploads = [value for value in form.getlist("files") if isinstance(value, UploadFile) and value.filename]
    steps, minutes = _number(form, "steps", MOST_STEPS), _number(form, "minutes", MOST_MINUTES)
    if steps is not None and steps != int(steps):
        raise UsageError(f"steps is {steps}; expected a whole number")
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        files = [_save(upload, Path(folder), index) for index, upload in enumerate(uploads)]
        return jobs.start(
            files,
            name=name,
            recipe=recipe,
            source=source,
            target=target,
            steps=None if steps is None else int(steps),
            minutes=minutes,
        )


def _save(upload: UploadFile, folder: Path, index: int) -> Path:
    path = folder / f"{index}{suffix_of(upload.filename or '')}"
    with path.open("wb") as file:
        shutil.copyfileobj(upload.file, file)
    return path


def _text(form: FormData, field: str) -> str:
    value = form.get(field, "")
    if not isinstance(value, str) or len(value) > LONGEST_FIELD:
        raise UsageError(f"{field} is a file or has more than {LONGEST_FIELD} characters; expected a word")
    return value.strip()


def _number(form: FormData, field: str, most: int) -> float | None:
    text = _text(form, field)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise UsageError(f"{field} is {text[:40]!r}; expected a number above 0, at most {most:,}")
    return value
