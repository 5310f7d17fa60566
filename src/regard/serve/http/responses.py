"""Errors in the shape of the API that was asked, and answers whose client may leave before they are ready."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from regard.data.tokenizers.base import well_formed
from regard.errors import DataError, RegardError, UsageError
from regard.serve.http.errors import BusyError, HTTPError

T = TypeVar("T")
OPENAI = "/v1"
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
UNBUFFERED = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # proxies pass each event on as it comes
GONE = 499  # the client has closed the connection: nobody reads the answer
log = logging.getLogger("regard.serve")


def error_response(path: str, error: Exception) -> Response:
    """What a client of this path is told: words and the right status, never a traceback or a file's path."""
    status, headers = _status(error), {}
    if isinstance(error, BusyError):
        headers["retry-after"] = str(error.retry_after)
    if status == 500:
        log.error("%s: %s", path, error, exc_info=error)
    words = well_formed(_words(error, status))  # they may repeat what came
    if not path.startswith(OPENAI):
        return JSONResponse({"error": words}, status, headers)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return JSONResponse({"error": {"message": words, "type": kind, "param": None, "code": None}}, status, headers)


def _status(error: Exception) -> int:
    match error:
        case HTTPError():
            return int(error.status)
        case HTTPException():
            return error.status_code
        case UsageError() | DataError() | RequestValidationError():
            return 400
        case _:
            return 500


def _words(error: Exception, status: int) -> str:
    match error:
        case RequestValidationError():
            return "; ".join(_mistake(each) for each in error.errors()[:3])
        case HTTPException():
            return str(error.detail)
        case RegardError() if status != 500 or isinstance(error, HTTPError):
            return str(error)
        case _:
            return "something went wrong here; the server's log says what"


def _mistake(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "body")
    return f"{where}: {error['msg']}" if where else str(error["msg"])


def handle_errors(app: FastAPI) -> None:
    """Every error leaves the application as an answer."""

    async def handler(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            return Response(status_code=GONE)
        return error_response(request.url.path, error)

    for kind in (RegardError, HTTPException, RequestValidationError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, handler)


async def wait_for_result(request: Request, work: Awaitable[T], *, seconds: float) -> T:
    """The result of some work, given up when it takes too long or its client has gone."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({task, watch}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if watch.done():
            raise ClientDisconnect
        raise BusyError(f"this took longer than {seconds:g} s; ask for less, or try again later", retry_after=5)
    finally:
        for each in (task, watch):
            each.cancel()


async def stream_events(request: Request, events: AsyncIterator[str], *, seconds: float) -> StreamingResponse:
    """Server-sent events as they come; what goes wrong before the first of them has a status of its own."""
    first = await wait_for_result(request, anext(events), seconds=seconds)

    async def all_of_them() -> AsyncIterator[str]:
        yield first
        async for event in events:
            yield event

    return StreamingResponse(all_of_them(), media_type="text/event-stream", headers=UNBUFFERED)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
