"""Routes for training: recipes, the current job, and the list of runs."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

from fastapi import APIRouter, Depends, Request
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from regard.config import Config
from regard.errors import UsageError
from regard.serve.http.responses import ConflictError, ForbiddenError, StorageFullError, TooLargeError
from regard.serve.jobs.comparison import RunComparison
from regard.serve.jobs.recipes import Offer, offers, suffix_of
from regard.serve.jobs.runner import UPLOAD, TrainingJobs
from regard.serve.jobs.runs import Job, Run, stream_zip
from regard.serve.jobs.temp_folders import ServerTempFolder, check_space
from regard.serve.models.registry import ModelRegistry
from regard.serve.settings import ServeSettings

TEXT_FIELDS = ("name", "recipe", "source", "target", "base")
LONGEST_FIELD = 200
MOST_STEPS = 1_000_000
MOST_MINUTES = 7 * 24 * 60
FORM_SCHEMA = {
    "type": "object",
    "required": ["name", "recipe"],
    "properties": {
        "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "maxItems": 2},
        **{field: {"type": "string"} for field in TEXT_FIELDS},
        "steps": {"type": "integer", "minimum": 1, "maximum": MOST_STEPS},
        "minutes": {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_MINUTES},
    },
}
FORM = {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": FORM_SCHEMA}}}}


class Replacement(Config):
    """Whether the model of a run is used in place of the one that it improves."""

    replaces: bool


class NewName(Config):
    """The new name of a run."""

    name: str


def training_router(
    jobs: TrainingJobs, registry: ModelRegistry, temp_folder: ServerTempFolder, settings: ServeSettings
) -> APIRouter:
    """The routes of the page's Train tab; `jobs.limit` is the limit of uploaded bytes. A model of the registry can be
    improved."""

    def check_allowed(request: Request) -> None:
        if not settings.training and request.method != "GET":
            raise ForbiddenError("training is switched off on this server (--no-training)")

    router = APIRouter(prefix="/api", tags=["training"], dependencies=[Depends(check_allowed)])

    @router.get("/recipes")
    def recipes() -> dict[str, list[Offer]]:
        return {"recipes": offers()}

    @router.get("/train")
    def current() -> dict[str, Job | None]:
        return {"job": jobs.current()}

    @router.post("/train", status_code=201, openapi_extra=FORM)
    async def start(request: Request) -> Job:
        await run_in_threadpool(_check_storage, jobs, settings)
        form = await _read_form(request, jobs.limit)
        try:
            return await run_in_threadpool(_start, jobs, registry, form, temp_folder)
        finally:
            await form.close()

    @router.post("/train/demo", status_code=201)
    def start_demo() -> Job:
        _check_storage(jobs, settings)
        return jobs.start_demo()

    @router.post("/train/stop")
    def stop() -> Job:
        return jobs.stop()

    @router.post("/train/resume")
    def resume() -> Job:
        check_space(jobs.runs)
        return jobs.resume()

    @router.get("/train/runs")
    def runs() -> dict[str, list[Run]]:
        return {"runs": jobs.all()}

    @router.post("/train/runs/{name}/resume")
    def resume_run(name: str) -> Job:
        check_space(jobs.runs)
        return jobs.resume(name)

    @router.post("/train/runs/{name}/use")
    def use(name: str) -> Run:
        return jobs.use(name)

    @router.get("/train/runs/{name}/comparison")
    def comparison(name: str) -> RunComparison:
        return jobs.compare(name)

    @router.post("/train/runs/{name}/replace")
    def replace(name: str, choice: Replacement) -> Replacement:
        record = jobs.replace(name, choice.replaces)
        pair = (record.model or "", record.base)
        registry.put_before(*(pair if choice.replaces else reversed(pair)))
        return choice

    @router.post("/train/runs/{name}/rename")
    def rename(name: str, wanted: NewName) -> Run:
        return jobs.rename(name, wanted.name)

    @router.get("/train/runs/{name}/download", response_class=StreamingResponse)
    def download(name: str) -> StreamingResponse:
        headers = {"content-disposition": f'attachment; filename="{name}.zip"'}  # the names of runs need no escaping
        return StreamingResponse(stream_zip(jobs.model(name), name), media_type="application/zip", headers=headers)

    @router.delete("/train/runs/{name}")
    def delete(name: str) -> dict[str, list[Run]]:
        jobs.delete(name)
        return {"runs": jobs.all()}

    @router.delete("/train")
    def forget() -> dict[str, None]:
        jobs.clear_current()
        return {"job": None}

    return router


async def _read_form(request: Request, limit: int) -> FormData:
    """The fields and files of a form; files are written to disk as they arrive, up to `limit` bytes in total."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise UsageError("the training data must come as multipart/form-data with the field files")
    try:
        return await MultiPartParser(request.headers, _limited(request, limit), max_files=2, max_fields=20).parse()
    except (MultiPartException, ClientDisconnect) as error:
        raise UsageError(f"the form cannot be read ({error}); send one file, or the two of a pair") from None


async def _limited(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > limit:
            raise TooLargeError(f"the training data have more bytes than the limit of {limit:,}; send less")
        yield chunk


def _check_storage(jobs: TrainingJobs, settings: ServeSettings) -> None:
    """Raise an error if the limits of kept runs or kept training data are reached, or the disk is nearly full."""
    if len(jobs.all()) >= settings.runs:
        raise ConflictError(f"{settings.runs} training runs are kept here, which is the limit; delete one first")
    jobs.runs.mkdir(parents=True, exist_ok=True)
    check_space(jobs.runs)
    kept = sum(file.stat().st_size for file in jobs.runs.glob(f"*/{UPLOAD}/*"))
    if kept >= settings.uploads:
        raise StorageFullError(
            f"the training data kept here have {kept:,} bytes; the limit is {settings.uploads:,}: delete a run"
        )


def _start(jobs: TrainingJobs, registry: ModelRegistry, form: FormData, temp_folder: ServerTempFolder) -> Job:
    name, recipe, source, target, base = (_text(form, field) for field in TEXT_FIELDS)
    uploads = [value for value in form.getlist("files") if isinstance(value, UploadFile) and value.filename]
    steps, minutes = _number(form, "steps", MOST_STEPS), _number(form, "minutes", MOST_MINUTES)
    if steps is not None and steps != int(steps):
        raise UsageError(f"steps is {steps}; expected a whole number")
    with tempfile.TemporaryDirectory(dir=temp_folder.folder) as folder:
        files = [_save(upload, Path(folder), index) for index, upload in enumerate(uploads)]
        return jobs.start(
            files,
            name=name,
            recipe=recipe,
            source=source,
            target=target,
            base=registry.find(base).folder if base else None,
            base_name=base,
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
